//! Token buckets over HTTP.

use serde_json::json;

use super::*;

#[tokio::test]
async fn a_bucket_runs_dry_for_its_action_only_and_refills() {
    let sim = Sim::with(json!({
        "throttle": {"enabled": true, "sizes": {"DescribeSubnets": {"burst": 3.0, "refill": 1.0}}},
    }))
    .await;
    let mut refused = None;
    for call in 0..20 {
        let answer = sim.call("DescribeSubnets", &[]).await;
        if answer.status != 200 {
            assert_eq!((answer.status, answer.code()), (503, Some("RequestLimitExceeded")));
            assert_eq!(answer.element("Message"), Some("Request limit exceeded."));
            refused = Some(call);
            break;
        }
    }
    assert!(refused.is_some_and(|call| call >= 3));
    sim.ok("DescribeInstances", &[]).await;
    eventually("a token is back", || async {
        sim.call("DescribeSubnets", &[]).await.status == 200
    })
    .await;
    sim.client.set_throttle(false).await.unwrap();
    for _ in 0..20 {
        sim.ok("DescribeSubnets", &[]).await;
    }
}

#[tokio::test]
async fn refused_calls_spend_tokens_unless_row_13_says_otherwise() {
    let size = json!({"DeleteNetworkInterface": {"burst": 3.0, "refill": 0.0}});
    let sim =
        Sim::with(json!({"throttle": {"enabled": true, "sizes": size, "failures_spend": false}}))
            .await;
    let gone = [("NetworkInterfaceId", "eni-0123456789abcdef0")];
    for _ in 0..9 {
        sim.refused("DeleteNetworkInterface", &gone, 400, "InvalidNetworkInterfaceID.NotFound")
            .await;
    }
    sim.client.set_switches(&json!({"throttle": {"failures_spend": true}})).await.unwrap();
    for _ in 0..3 {
        sim.refused("DeleteNetworkInterface", &gone, 400, "InvalidNetworkInterfaceID.NotFound")
            .await;
    }
    sim.refused("DeleteNetworkInterface", &gone, 503, "RequestLimitExceeded").await;
}
