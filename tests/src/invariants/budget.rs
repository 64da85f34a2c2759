//! I5: EC2 calls stay in budget: over any window no more calls of an action than its bucket holds and refills
//! (`ec2.md` §5), counting every attempt of every coordinator.

use super::Violation;
use super::evidence::Evidence;
use std::collections::BTreeMap;

/// Burst and refill a second.
fn bucket(action: &str) -> (f64, f64) {
    match action {
        "CreateNetworkInterface"
        | "DeleteNetworkInterface"
        | "ModifyNetworkInterfaceAttribute"
        | "AssignPrivateIpAddresses"
        | "UnassignPrivateIpAddresses"
        | "AssignIpv6Addresses" => (100.0, 5.0),
        "CreateTags" | "DeleteTags" => (100.0, 10.0),
        _ if action.starts_with("Describe") => (100.0, 20.0),
        _ => (50.0, 5.0),
    }
}

/// Counts the calls of each action against its bucket.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    if !evidence.rules.budget {
        return Vec::new();
    }
    let mut arrivals: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for call in evidence.calls.iter().filter(|call| evidence.ours(call)) {
        arrivals.entry(&call.action).or_default().push(call.arrived_ms);
    }
    let mut found = Vec::new();
    for (action, mut times) in arrivals {
        times.sort_unstable();
        if let Some(text) = overdrawn(&times, bucket(action)) {
            found.push(Violation::new("I5", format!("{action}: {text}")));
        }
    }
    found
}

/// A leaky count: the level falls by the refill and rises by one a call; it may not pass the burst. One second of refill
/// is forgiven, because the bucket refills in steps and calls take a moment to arrive.
fn overdrawn(times: &[i64], (burst, refill): (f64, f64)) -> Option<String> {
    let (mut level, mut last) = (0.0_f64, *times.first()?);
    for (count, time) in times.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "milliseconds within one run")]
        let passed = (time - last) as f64 / 1000.0;
        level = (level - passed * refill).max(0.0) + 1.0;
        last = *time;
        if level > burst + refill {
            return Some(format!(
                "call {} of the run at {time} overdraws {burst} + {refill}/s",
                count + 1
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::overdrawn;

    #[test]
    fn a_burst_and_the_refill_are_allowed_and_no_more() {
        let burst: Vec<i64> = vec![0; 55];
        assert_eq!(overdrawn(&burst, (50.0, 5.0)), None);
        let more: Vec<i64> = vec![0; 56];
        assert!(overdrawn(&more, (50.0, 5.0)).is_some());
        let steady: Vec<i64> = (0..1000).map(|n| n * 200).collect();
        assert_eq!(overdrawn(&steady, (50.0, 5.0)), None);
        let storm: Vec<i64> = (0..1000).map(|n| n * 100).collect();
        assert!(overdrawn(&storm, (50.0, 5.0)).is_some());
    }
}
