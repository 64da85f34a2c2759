//! The SDK with mocked replies, as far as no server is needed to see what it makes of them.

use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Config;
use aws_smithy_mocks::{MockResponseInterceptor, Rule, RuleMode, create_mock_http_client, mock};
use aws_smithy_runtime_api::http::{Response, StatusCode};
use aws_smithy_types::body::SdkBody;
use trunkline_core::eni::{AssociateBranch, Ec2Call, Ec2Reply};

use super::*;

struct Never;

impl LeaseDeadline for Never {
    fn expired(&self) -> bool {
        false
    }
}

fn mocked(rules: &[&Rule]) -> (Ec2, Metrics) {
    let interceptor = rules
        .iter()
        .fold(MockResponseInterceptor::new().rule_mode(RuleMode::MatchAny), |all, rule| {
            all.with_rule(rule)
        });
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("AKIDMOCK", "secret", None, None, "test"))
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(ATTEMPTS)
                .with_initial_backoff(Duration::from_millis(1)),
        )
        .http_client(create_mock_http_client())
        .interceptor(interceptor)
        .build();
    let client = Client::from_conf(config);
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let settings = Settings::new("blue".parse().unwrap(), "vpc-00000001".parse().unwrap());
    let ec2 = Ec2::over(client.clone(), client, None, settings, Arc::new(Never), metrics.clone());
    (ec2, metrics)
}

fn response(status: u16, body: &str) -> Response<SdkBody> {
    Response::new(StatusCode::try_from(status).unwrap(), SdkBody::from(body))
}

fn associated(branch: &str, trunk: &str, vlan: &str, id: &str) -> String {
    format!(
        "<AssociateTrunkInterfaceResponse><interfaceAssociation><associationId>{id}</associationId>\
         <branchInterfaceId>{branch}</branchInterfaceId><trunkInterfaceId>{trunk}</trunkInterfaceId>\
         <interfaceProtocol>VLAN</interfaceProtocol><vlanId>{vlan}</vlanId></interfaceAssociation>\
         </AssociateTrunkInterfaceResponse>"
    )
}

fn call() -> Ec2Call {
    Ec2Call::Associate(AssociateBranch {
        branch: "eni-00000001".parse().unwrap(),
        trunk: "eni-00000002".parse().unwrap(),
        vlan: "7".parse().unwrap(),
        nonce: 0,
    })
}

#[tokio::test]
async fn an_associate_reply_must_be_about_what_was_asked() {
    for (branch, trunk, vlan, id, believed) in [
        ("eni-00000001", "eni-00000002", "7", "trunk-assoc-1", true),
        ("eni-00000003", "eni-00000002", "7", "trunk-assoc-1", false),
        ("eni-00000001", "eni-00000003", "7", "trunk-assoc-1", false),
        ("eni-00000001", "eni-00000002", "8", "trunk-assoc-1", false),
        ("eni-00000001", "eni-00000002", "4095", "trunk-assoc-1", false),
        ("eni-00000001", "eni-00000002", "7", "trunk-ass", false),
        ("eni-00000001", "eni-", "7", "trunk-assoc-1", false),
    ] {
        let body = associated(branch, trunk, vlan, id);
        let rule = mock!(Client::associate_trunk_interface)
            .match_requests(|request| {
                request.vlan_id() == Some(7)
                    && request.client_token().is_some_and(|token| token.len() == 32)
            })
            .then_http_response(move || response(200, &body));
        let (ec2, metrics) = mocked(&[&rule]);
        let answer = ec2.call(call(), Priority::PodStart).await;
        match answer {
            Ok(Ec2Reply::Associated(association)) => {
                assert!(believed, "{association:?}");
                assert_eq!(association.id.as_str(), id);
            }
            Ok(other) => panic!("{other:?}"),
            Err(failure) => {
                assert!(!believed, "{failure}");
                assert_eq!(failure.class, FailureClass::OutcomeUnknown);
            }
        }
        assert_eq!(metrics.count(Action::AssociateTrunkInterface, None), 1);
    }
}

#[tokio::test]
async fn codes_reach_their_class_through_the_sdk_and_are_counted_by_it() {
    for (status, code, class) in [
        (400, "InvalidVlanId.Duplicate", FailureClass::VlanInUse),
        (400, "Client.InvalidVlanId.Duplicate", FailureClass::VlanInUse),
        (403, "UnauthorizedOperation", FailureClass::Unauthorised),
        (500, "InternalError", FailureClass::OutcomeUnknown),
        (503, "RequestLimitExceeded", FailureClass::Throttled),
        (400, "NeverSeen", FailureClass::Unrecognised),
    ] {
        let body = format!(
            "<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors>\
             <RequestID>r</RequestID></Response>"
        );
        let rule = mock!(Client::associate_trunk_interface)
            .then_http_response(move || response(status, &body));
        let (ec2, metrics) = mocked(&[&rule]);
        let failure = ec2.call(call(), Priority::PodStart).await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_deref()), (class, Some(code)), "{failure}");
        assert_eq!(metrics.count(Action::AssociateTrunkInterface, Some(class)), 1);
    }
}
