//! Token buckets per action (`ec2.md` §5), over all callers. The refill is one step a second.

use std::collections::BTreeMap;

use super::params::Params;
use super::switches::{BucketSize, Throttle};

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    second: u64,
}

/// All buckets. One is made, full, at the first call of its action.
#[derive(Debug, Default)]
pub(crate) struct Buckets(BTreeMap<String, Bucket>);

/// The bucket that a call draws from: describes with neither filter nor page size have their own.
pub(crate) fn bucket_of(action: &str, params: &Params) -> String {
    let narrow = [
        "Filter.",
        "MaxResults",
        "NextToken",
        "NetworkInterfaceId.",
        "InstanceId.",
        "GroupId.",
        "GroupName.",
    ];
    let split = ["DescribeNetworkInterfaces", "DescribeInstances", "DescribeSecurityGroups"];
    if split.contains(&action)
        && !params.all().keys().any(|key| narrow.iter().any(|n| key.starts_with(n)))
    {
        format!("{action}/unfiltered")
    } else {
        action.to_owned()
    }
}

fn size(bucket: &str, settings: &Throttle) -> BucketSize {
    if let Some(size) = settings.sizes.get(bucket) {
        return *size;
    }
    let (burst, refill) = match bucket {
        "CreateNetworkInterface"
        | "DeleteNetworkInterface"
        | "ModifyNetworkInterfaceAttribute"
        | "AssignPrivateIpAddresses"
        | "UnassignPrivateIpAddresses"
        | "AssignIpv6Addresses" => (100.0, 5.0),
        "CreateTags" | "DeleteTags" => (100.0, 10.0),
        "AssociateTrunkInterface" | "DisassociateTrunkInterface" if settings.slow_trunk_actions => {
            (20.0, 2.0)
        }
        _ if bucket.ends_with("/unfiltered") => (50.0, 10.0),
        _ if bucket.starts_with("Describe") => (100.0, 20.0),
        _ => (50.0, 5.0),
    };
    BucketSize { burst: burst * settings.scale, refill: refill * settings.scale }
}

impl Buckets {
    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, bucket: &str, settings: &Throttle, now: u64) -> bool {
        if !settings.enabled {
            return true;
        }
        let size = size(bucket, settings);
        let second = now / 1000;
        let state =
            self.0.entry(bucket.to_owned()).or_insert(Bucket { tokens: size.burst, second });
        let action = bucket.split('/').next().unwrap_or(bucket);
        let gain = size.refill - settings.neighbour.get(action).copied().unwrap_or(0.0);
        // Seconds of one run are far below 2^32.
        let passed = f64::from(u32::try_from(second - state.second).unwrap_or(u32::MAX));
        state.tokens = (state.tokens + passed * gain).clamp(0.0, size.burst);
        state.second = second;
        let granted = state.tokens >= 1.0;
        if granted {
            state.tokens -= 1.0;
        }
        granted
    }

    /// Gives a token back (row 13, other side).
    pub(crate) fn give_back(&mut self, bucket: &str, settings: &Throttle) {
        let burst = size(bucket, settings).burst;
        if let Some(state) = self.0.get_mut(bucket) {
            state.tokens = (state.tokens + 1.0).min(burst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(buckets: &mut Buckets, bucket: &str, settings: &Throttle, now: u64) -> usize {
        (0..200).take_while(|_| buckets.take(bucket, settings, now)).count()
    }

    #[test]
    fn a_bucket_bursts_and_refills_in_steps_of_a_second() {
        let mut settings = Throttle::default();
        let mut buckets = Buckets::default();
        let action = "AssociateTrunkInterface";
        assert_eq!(granted(&mut buckets, action, &settings, 100), 50);
        assert_eq!(granted(&mut buckets, action, &settings, 999), 0);
        assert_eq!(granted(&mut buckets, action, &settings, 1000), 5);
        assert_eq!(granted(&mut buckets, action, &settings, 3999), 10);
        assert_eq!(granted(&mut buckets, action, &settings, 900_000), 50);
        settings.neighbour.insert(action.into(), 4.0);
        assert_eq!(granted(&mut buckets, action, &settings, 902_000), 2);
        settings.slow_trunk_actions = true;
        settings.scale = 0.5;
        assert_eq!(granted(&mut buckets, "DisassociateTrunkInterface", &settings, 0), 10);
        assert_eq!(granted(&mut buckets, "CreateNetworkInterface", &settings, 0), 50);
    }

    #[test]
    fn an_unfiltered_describe_has_its_own_smaller_bucket() {
        let bare = Params::decode("Action=DescribeNetworkInterfaces&Version=2016-11-15");
        let paged = Params::decode("Action=DescribeNetworkInterfaces&MaxResults=5");
        assert_eq!(
            bucket_of("DescribeNetworkInterfaces", &bare),
            "DescribeNetworkInterfaces/unfiltered"
        );
        assert_eq!(bucket_of("DescribeNetworkInterfaces", &paged), "DescribeNetworkInterfaces");
        let mut buckets = Buckets::default();
        let settings = Throttle::default();
        assert_eq!(granted(&mut buckets, "DescribeNetworkInterfaces/unfiltered", &settings, 0), 50);
        assert_eq!(granted(&mut buckets, "DescribeNetworkInterfaces", &settings, 0), 100);
    }
}
