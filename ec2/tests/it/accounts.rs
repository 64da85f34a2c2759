//! Two accounts: the assumed role owns the ENIs, our own account associates them (`AWS-1` to `AWS-4`).

use std::collections::BTreeMap;

use trunkline_core::eni::{Ec2Call, FailureClass};
use trunkline_ec2::{Ec2, Settings, SetupError};
use trunkline_sim::ec2::Config;

use crate::support::{
    ACCOUNT, CLUSTER, Lease, OWN_KEY, POD, Reply, Scripted, World, metrics, scripted, settings,
};

const ROLE_KEY: &str = "ASIAROLE";
const CONTROLLER: &str = "999999999999";

fn role() -> String {
    format!("\"arn:aws:iam::{ACCOUNT}:role/vpc\"")
}

fn assume_role(_: &str) -> Reply {
    Reply::Body(
        200,
        format!(
            "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
             <AccessKeyId>{ROLE_KEY}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ),
    )
}

fn identity(account: &'static str) -> impl FnMut(&str) -> Reply {
    move |request| {
        if request.contains("Action=AssumeRole") {
            return assume_role(request);
        }
        Reply::Body(
            200,
            format!(
                "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                 <GetCallerIdentityResult><Account>{account}</Account></GetCallerIdentityResult>\
                 </GetCallerIdentityResponse>"
            ),
        )
    }
}

#[tokio::test]
async fn with_a_foreign_role_each_call_goes_with_its_credentials_and_the_branch_is_granted_first() {
    let mut sts = scripted(assume_role).await;
    let url = sts.url.clone();
    let config = Config {
        accounts: BTreeMap::from([(OWN_KEY.to_owned(), CONTROLLER.to_owned())]),
        ..Config::plain()
    };
    let world = World::with(config, |settings| Settings {
        account: Some(CONTROLLER.into()),
        role_arn: Some(role()),
        sts_endpoint: Some(url),
        ..settings
    })
    .await;
    let (eni, association) = world.branch(1).await;
    world.disassociate(&eni.id, 1, &association.id).await.unwrap();
    world.delete(&eni.id, 1).await.unwrap();
    let log = world.sim.log(world.ready).await.unwrap();
    let calls: Vec<(&str, &str)> =
        log.iter().map(|e| (e.action.as_str(), e.caller.as_str())).collect();
    assert_eq!(
        calls,
        [
            ("CreateNetworkInterface", ROLE_KEY),
            ("CreateNetworkInterfacePermission", ROLE_KEY),
            ("AssociateTrunkInterface", OWN_KEY),
            ("DisassociateTrunkInterface", OWN_KEY),
            ("DeleteNetworkInterface", ROLE_KEY),
        ]
    );
    let grant = &log[1].params;
    assert_eq!(grant.get("AwsAccountId").map(String::as_str), Some(CONTROLLER));
    assert_eq!(grant.get("Permission").map(String::as_str), Some("INSTANCE-ATTACH"));

    let request = sts.requests.recv().await.unwrap();
    let lower = request.to_lowercase();
    assert!(
        lower.contains(&format!(
            "x-amz-source-arn: arn:aws:eks:eu-west-1:{ACCOUNT}:cluster/{CLUSTER}"
        )),
        "{request}"
    );
    assert!(lower.contains(&format!("x-amz-source-account: {ACCOUNT}")), "{request}");
    let signed = lower.lines().find(|l| l.starts_with("authorization:")).unwrap();
    assert!(signed.contains("x-amz-source-account;x-amz-source-arn"), "{signed}");
    assert!(request.contains("DurationSeconds=3600"));
    assert!(request.contains("RoleSessionName=amazon-vpc-resource-controller-k8s"));
    assert!(sts.requests.try_recv().is_err(), "the credentials are kept");
}

#[tokio::test]
async fn a_role_of_the_own_account_costs_no_permission_call() {
    let sts = scripted(identity(ACCOUNT)).await;
    let url = sts.url.clone();
    let world = World::with(Config::plain(), |settings| Settings {
        account: None,
        role_arn: Some(role()),
        sts_endpoint: Some(url),
        ..settings
    })
    .await;
    world.branch(1).await;
    assert!(world.calls("CreateNetworkInterfacePermission").await.is_empty());
}

#[tokio::test]
async fn the_own_account_is_asked_of_sts_only_with_a_role_and_a_refusal_is_an_error_at_the_start() {
    let sts = scripted(|_| {
        Reply::Body(
            403,
            "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>".into(),
        )
    })
    .await;
    let with_role = Settings {
        account: None,
        role_arn: Some(role()),
        sts_endpoint: Some(sts.url.clone()),
        ..settings("http://127.0.0.1:1")
    };
    let refused = Ec2::new(with_role.clone(), Lease::endless(), metrics()).await;
    assert!(matches!(refused, Err(SetupError::NoAccount(_))), "{refused:?}");
    let without = Settings { role_arn: None, ..with_role.clone() };
    assert!(Ec2::new(without, Lease::endless(), metrics()).await.is_ok());
    let bad = Settings { role_arn: Some("vpc-role".into()), ..with_role };
    assert!(matches!(
        Ec2::new(bad, Lease::endless(), metrics()).await,
        Err(SetupError::InvalidRole(_))
    ));
}

#[tokio::test]
async fn a_role_that_cannot_be_assumed_is_a_matter_of_credentials_and_nothing_was_sent() {
    let sts = scripted(|_| {
        Reply::Body(
            403,
            "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>".into(),
        )
    })
    .await;
    let ec2 = scripted(|_| Reply::Close).await;
    let settings = Settings {
        role_arn: Some(role()),
        sts_endpoint: Some(sts.url.clone()),
        ..settings(&ec2.url)
    };
    let adapter = Ec2::new(settings, Lease::endless(), metrics()).await.unwrap();
    let answer = adapter.call(Ec2Call::Describe("eni-00000001".parse().unwrap()), POD).await;
    let failure = answer.unwrap_err();
    assert_eq!(failure.class, FailureClass::Credentials, "{failure}");
    let Scripted { mut requests, .. } = ec2;
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn a_connection_that_closes_without_a_reply_may_have_carried_the_call_out() {
    let mut server = scripted(|_| Reply::Close).await;
    let adapter = Ec2::new(settings(&server.url), Lease::endless(), metrics()).await.unwrap();
    let tags = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let call = Ec2Call::Tag { eni: "eni-00000001".parse().unwrap(), tags };
    let failure = adapter.call(call, POD).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
    for _ in 0..3 {
        assert!(server.requests.recv().await.unwrap().contains("Action=CreateTags"));
    }
}
