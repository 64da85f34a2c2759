//! From what the SDK returns to the classes of `ec2.md` §9.
//!
//! No EC2 operation models an error, so everything is decided by the code, for some codes by the text, and before both by
//! what may have happened: a 5xx, a timeout, a lost connection, a reply that is not whole or has no code leave the
//! outcome unknown, and so does a definite refusal after an earlier attempt of the same call that had no definite answer.

use std::error::Error;

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use trunkline_core::eni::{Ec2Failure, FailureClass};

use crate::action::Action;
use crate::guard::Attempts;

/// Longest message that is kept; an `UnauthorizedOperation` carries a long encoded text.
const MESSAGE_CHARS: usize = 500;

/// The code without the `Client.` or `Server.` that some replies put before it.
fn plain(code: &str) -> &str {
    code.strip_prefix("Client.").or_else(|| code.strip_prefix("Server.")).unwrap_or(code)
}

/// The last `<Code>` of an error body, which is the one the SDK takes.
pub(crate) fn code_in(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (_, rest) = text.rsplit_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let code = code.trim();
    (!code.is_empty()).then(|| code.to_owned())
}

/// Whether EC2 refused for the rate.
pub(crate) fn is_throttle(status: u16, code: Option<&str>) -> bool {
    let by_code = code.is_some_and(|code| {
        matches!(
            plain(code),
            "RequestLimitExceeded"
                | "Throttling"
                | "ThrottlingException"
                | "ThrottledException"
                | "RequestThrottled"
                | "RequestThrottledException"
                | "TooManyRequestsException"
                | "EC2ThrottledException"
                | "SlowDown"
                | "BandwidthLimitExceeded"
                | "LimitExceededException"
        )
    });
    by_code || status == 429
}

/// Whether a non-2xx reply says for certain that nothing was done.
pub(crate) fn is_definite(status: u16, code: Option<&str>) -> bool {
    (400..500).contains(&status) && code.is_some_and(|code| !is_internal(plain(code)))
}

fn is_internal(code: &str) -> bool {
    matches!(
        code,
        "InternalError"
            | "InternalFailure"
            | "ServiceUnavailable"
            | "Unavailable"
            | "RequestTimeout"
            | "RequestTimeoutException"
    )
}

/// The class of a definite refusal.
pub(crate) fn by_code(action: Action, code: &str, message: &str) -> FailureClass {
    let associating = action == Action::AssociateTrunkInterface;
    match plain(code) {
        "InvalidVlanId.Duplicate" => FailureClass::VlanInUse,
        "InvalidNetworkInterfaceID.NotFound"
        | "InvalidAssociationID.NotFound"
        | "InvalidInstanceID.NotFound"
        | "InvalidAttachmentID.NotFound" => FailureClass::NotFound,
        "InvalidNetworkInterface.InUse" if associating => FailureClass::AlreadyAssociated,
        "InvalidNetworkInterface.InUse" => FailureClass::InUse,
        "InvalidIPAddress.InUse" | "Resource.AlreadyAssigned" => FailureClass::AddressInUse,
        "InsufficientFreeAddressesInSubnet" | "InsufficientCidrBlocks" => FailureClass::SubnetFull,
        "AttachmentLimitExceeded" if associating => FailureClass::BranchLimit,
        "NetworkInterfaceLimitExceeded" | "AttachmentLimitExceeded" => FailureClass::Quota,
        "IdempotentParameterMismatch" => FailureClass::TokenMismatch,
        "SecurityGroupsPerInterfaceLimitExceeded"
        | "InvalidGroup.NotFound"
        | "InvalidSecurityGroupID.NotFound"
        | "InvalidGroupId.Malformed"
        | "InvalidSubnetID.NotFound"
        | "InvalidSubnet.NotFound" => FailureClass::Configuration,
        "MissingParameter"
        | "UnknownParameter"
        | "InvalidParameterCombination"
        | "InvalidAction"
        | "InvalidNetworkInterfaceId.Malformed"
        | "InvalidNetworkInterfaceID.Malformed"
        | "InvalidInstanceID.Malformed"
        | "InvalidNetworkInterfaceAttachmentId.Malformed"
        | "InvalidFilter"
        | "InvalidInstanceType"
        | "InvalidTagKey.Malformed"
        | "TagLimitExceeded"
        | "InvalidID" => FailureClass::Malformed,
        "UnauthorizedOperation" | "OperationNotPermitted" | "AccessDenied" => {
            FailureClass::Unauthorised
        }
        "AuthFailure"
        | "RequestExpired"
        | "ExpiredToken"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "UnrecognizedClientException" => FailureClass::Credentials,
        "ConcurrentTagAccess" | "IncorrectState" | "IncorrectInstanceState" => {
            FailureClass::Transient
        }
        "InvalidParameterValue" => by_text(message),
        _ => FailureClass::Unrecognised,
    }
}

/// `InvalidParameterValue` means many things; only its text tells them apart.
fn by_text(message: &str) -> FailureClass {
    let text = message.to_ascii_lowercase();
    if text.contains("sufficient free") {
        FailureClass::SubnetFull
    } else if text.contains("already associated") {
        FailureClass::AlreadyAssociated
    } else if text.contains("currently in use")
        || text.contains("already has an interface attached")
    {
        FailureClass::InUse
    } else {
        FailureClass::Unrecognised
    }
}

/// The failure of a call whose attempts are known.
pub(crate) fn failure<E>(
    action: Action,
    attempts: &Attempts,
    error: &SdkError<E, HttpResponse>,
) -> Ec2Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let code = error.code().filter(|code| !code.is_empty()).map(str::to_owned);
    let message = match error.message() {
        Some(message) if code.is_some() => message.to_owned(),
        _ => DisplayErrorContext(error).to_string(),
    };
    let uncertain = attempts.uncertain() && action.mutates();
    let class = if attempts.fenced() {
        if uncertain { FailureClass::OutcomeUnknown } else { FailureClass::Fenced }
    } else if attempts.sent() == 0 {
        match error {
            SdkError::ConstructionFailure(_) => FailureClass::Malformed,
            // All that happens between building a request and sending it is finding credentials and signing.
            _ => FailureClass::Credentials,
        }
    } else if uncertain {
        FailureClass::OutcomeUnknown
    } else {
        answered(action, error, code.as_deref(), &message)
    };
    Ec2Failure { class, code, message: message.chars().take(MESSAGE_CHARS).collect() }
}

fn answered<E>(
    action: Action,
    error: &SdkError<E, HttpResponse>,
    code: Option<&str>,
    message: &str,
) -> FailureClass {
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    match code {
        _ if is_throttle(status, code) => FailureClass::Throttled,
        Some(known) if is_definite(status, code) => by_code(action, known, message),
        _ => FailureClass::OutcomeUnknown,
    }
}

/// A reply that cannot be believed.
pub(crate) fn invalid_reply(action: Action, why: &str) -> Ec2Failure {
    Ec2Failure {
        class: FailureClass::OutcomeUnknown,
        code: None,
        message: format!("the reply to {} cannot be believed: {why}", action.name()),
    }
}

/// Whether the failure has this code, `Client.` before it or not.
pub(crate) fn has_code(failure: &Ec2Failure, code: &str) -> bool {
    failure.code.as_deref().is_some_and(|found| plain(found) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s45_every_spelling_of_a_full_subnet_is_one_class() {
        let create = Action::CreateNetworkInterface;
        for (code, text) in [
            (
                "InsufficientFreeAddressesInSubnet",
                "The specified subnet does not have enough free addresses to satisfy the request.",
            ),
            ("InsufficientCidrBlocks", ""),
            ("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes"),
            ("Client.InsufficientFreeAddressesInSubnet", ""),
        ] {
            assert_eq!(by_code(create, code, text), FailureClass::SubnetFull, "{code}");
        }
    }

    #[test]
    fn invalid_parameter_value_is_told_apart_by_its_text() {
        let delete = Action::DeleteNetworkInterface;
        for (text, class) in [
            ("Network interface 'eni-1' is currently in use.", FailureClass::InUse),
            (
                "Instance 'i-x' already has an interface attached at device index '2'.",
                FailureClass::InUse,
            ),
            ("eni-1 is already associated", FailureClass::AlreadyAssociated),
            ("something else", FailureClass::Unrecognised),
        ] {
            assert_eq!(by_code(delete, "InvalidParameterValue", text), class, "{text}");
        }
    }

    #[test]
    fn an_unknown_code_takes_the_cautious_branch() {
        let class = by_code(Action::AssociateTrunkInterface, "SomethingNew", "");
        assert_eq!(class, FailureClass::Unrecognised);
        assert!(class.may_have_happened());
    }

    #[test]
    fn the_last_code_of_an_error_body_counts() {
        let body = b"<Response><Errors><Error><Code>A</Code></Error><Error><Code>B</Code></Error></Errors></Response>";
        assert_eq!(code_in(body).as_deref(), Some("B"));
        for body in ["", "<html>502</html>", "<Code></Code>", "<Code>cut"] {
            assert_eq!(code_in(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn only_a_4xx_with_a_code_of_its_own_is_definite() {
        assert!(is_definite(400, Some("IncorrectState")));
        assert!(!is_definite(400, Some("InternalError")));
        assert!(!is_definite(403, None));
        assert!(!is_definite(500, Some("InvalidParameterValue")));
        assert!(is_throttle(400, Some("Client.RequestLimitExceeded")));
        assert!(is_throttle(429, None));
    }
}
