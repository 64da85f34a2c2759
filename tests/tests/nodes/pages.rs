//! What agents and coordinator ask the API server, counted by a proxy and in their metrics, and their health pages.

use super::{SOON, cluster};
use kube::ResourceExt as _;
use serde_json::Value;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::proxy::model::{FaultKind, FaultSpec, Match};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{deploy, poll};

pub(super) async fn page(base: &str, path: &str) -> (u16, String) {
    let answer = SimClient::new(base).send(http::Method::GET, path, &[], String::new()).await;
    let answer = answer.unwrap();
    (answer.status, answer.body)
}

/// The value of a counter, over all its labels that contain `label`.
async fn counter(base: &str, name: &str, label: &str) -> f64 {
    let (_, text) = page(base, "/metrics").await;
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn s64_s15_s16_requests_for_pods_are_narrow_and_a_410_in_a_watch_is_listed_over() {
    let Some(mut cluster) = cluster("s64", Options::default().nodes(2).proxied()).await else {
        return;
    };
    let proxy = cluster.proxy.clone().unwrap();
    cluster.create(&PodSpec::branch("first", "node-1")).await.unwrap();
    cluster.running("first", SOON).await.unwrap();

    // S15: an ERROR event with code 410 inside a watch that was answered 200. S16: node-2 is idle meanwhile.
    for node in ["node-1", "node-2"] {
        let health = cluster.agents[node].health.clone();
        let lists = counter(&health, "trunkline_listwatch_lists_total", "").await;
        let fault = FaultSpec::times(Match::agent_of(node), FaultKind::ExpireWatch, 1);
        let fault = proxy.add(&fault).await.unwrap();
        let pod = format!("after-410-on-{node}");
        cluster.create(&PodSpec::branch(&pod, node)).await.unwrap();
        poll::eventually("the watch was told 410, and was listed over", SOON, async || {
            let hits = proxy.hits(fault).await.unwrap();
            let now = counter(&health, "trunkline_listwatch_lists_total", "").await;
            if hits == 1 && now > lists { Ok(()) } else { Err(format!("{hits}, {now}")) }
        })
        .await
        .unwrap();
        cluster.running(&pod, SOON).await.unwrap();
        cluster.agents.get_mut(node).unwrap().process.must_run().unwrap();
    }
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    cluster.delete("default", "first", false).await.unwrap();
    let served = cluster.create(&PodSpec::branch("last", "node-2")).await.unwrap();
    cluster.running("last", SOON).await.unwrap();
    assert!(served.uid().is_some());

    // S64, S79: an agent asks for its own node's pods and for nothing else; the coordinator never for all pods.
    let log = proxy.log(1).await.unwrap();
    let by = |account: &str| {
        let caller = format!("system:serviceaccount:{}:{account}", deploy::NAMESPACE);
        log.iter().filter(move |entry| entry.event.is_none() && entry.caller == caller)
    };
    assert!(by(deploy::AGENT).count() >= 8);
    for entry in by(deploy::AGENT) {
        let narrow = entry.method == "GET"
            && entry.path == "/api/v1/pods"
            && (entry.query.contains("fieldSelector=spec.nodeName=node-1")
                || entry.query.contains("fieldSelector=spec.nodeName=node-2"));
        assert!(narrow, "{entry:?}");
    }
    assert!(by(deploy::COORDINATOR).count() > 20);
    for entry in by(deploy::COORDINATOR) {
        let pods = entry.path == "/api/v1/pods" || entry.path.ends_with("/pods");
        assert!(!pods || entry.query.contains("fieldSelector=spec.nodeName="), "{entry:?}");
    }
    health_pages(&cluster).await;
    cluster.finish().await.unwrap();
}

/// `OBS-1` and design §8, on both binaries.
async fn health_pages(cluster: &Cluster) {
    let coordinator = &cluster.coordinators[0];
    let agent = &cluster.agents["node-1"];
    for base in [&coordinator.health, &agent.health] {
        assert_eq!(page(base, "/livez").await, (200, "ok".to_owned()));
        assert_eq!(page(base, "/healthz").await, (200, "ok".to_owned()));
        let (code, body) = page(base, "/readyz?verbose").await;
        assert_eq!(code, 200, "{body}");
        assert!(body.contains("[+]") && !body.contains("[-]"), "{body}");
        let (code, body) = page(base, "/status").await;
        assert_eq!(code, 200);
        assert!(serde_json::from_str::<Value>(&body).unwrap().is_object());
        assert_eq!(page(base, "/nothing").await.0, 404);
    }
    for base in [&coordinator.metrics, &agent.health] {
        let (code, text) = page(base, "/metrics").await;
        assert_eq!(code, 200);
        assert!(text.contains("# TYPE trunkline_") && text.ends_with("# EOF\n"), "{text}");
    }
    assert_eq!(page(&coordinator.health, "/metrics").await.0, 404, "on an address of their own");
    let (code, body) = page(&coordinator.health, "/healthz?verbose").await;
    assert_eq!(code, 200);
    for check in [
        "health-root-manager-ping",
        "health-resource-manager",
        "health-branch-provider",
        "health-pod-controller",
        "health-custom-pod-controller",
        "health-node-controller",
        "health-node-manager",
        "health-cm-controller",
    ] {
        assert!(body.contains(&format!("[+]{check} ok")), "{check}: {body}");
        assert_eq!(page(&coordinator.health, &format!("/healthz/{check}")).await.0, 200);
    }
}
