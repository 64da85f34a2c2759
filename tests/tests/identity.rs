//! Who may speak for a node, and who may ask: agents' tokens, two agents of one node, agents of a machine that is gone,
//! redirects of followers, the status service and its command line.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::model::InstanceSpec;
use trunkline_sim::node::model::KubeletAction;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::{self, PodSpec};
use trunkline_tests::tokens::{self, AUDIENCE};
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(40);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

async fn page(base: &str, path: &str) -> Result<(u16, String), String> {
    let client = SimClient::new(base);
    let answer = client.send(http::Method::GET, path, &[], String::new()).await;
    answer.map(|a| (a.status, a.body)).map_err(|error| error.to_string())
}

/// `/status` of an agent or a coordinator.
async fn status(base: &str) -> Result<Value, String> {
    let (code, body) = page(base, "/status").await?;
    serde_json::from_str(&body).map_err(|error| format!("{code}: {error}: {body}"))
}

/// Waits until an agent has no session and says why in words that contain `reason`.
async fn refused(health: &str, reason: &str) {
    poll::eventually(&format!("the agent is refused: {reason}"), SOON, async || {
        let session = status(health).await?["session"].clone();
        let said = session["reason"].as_str().unwrap_or_default();
        if session["state"] == "waiting" && said.contains(reason) {
            Ok(())
        } else {
            Err(session.to_string())
        }
    })
    .await
    .unwrap();
    let (code, body) = page(health, "/readyz?verbose").await.unwrap();
    assert_ne!(code, 200, "an agent without a session is not ready");
    assert!(body.contains("[-]session"), "{body}");
}

async fn connected(health: &str) {
    poll::eventually("the agent has a session", SOON, async || {
        let session = status(health).await?["session"].clone();
        if session["state"] == "connected" { Ok(()) } else { Err(session.to_string()) }
    })
    .await
    .unwrap();
}

/// Whether the leader's books have an agent of this node.
async fn seen_by_leader(cluster: &Cluster, leader: usize, node: &str) -> bool {
    let status = status(&cluster.coordinators[leader].health).await.unwrap();
    status["nodes"][node]["connected"].as_bool().unwrap()
}

/// The claims of a token with another life, signed with the API server's own key.
fn signed_again(cluster: &Cluster, token: &str, issued: i64, expires: i64) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let mut claims: Value = serde_json::from_slice(&B64.decode(parts[1]).unwrap()).unwrap();
    for (claim, at) in [("iat", issued), ("nbf", issued), ("exp", expires)] {
        claims[claim] = at.into();
    }
    let signed = format!("{}.{}", parts[0], B64.encode(claims.to_string()));
    let pem = std::fs::read_to_string(cluster.plane.folder().join("sa.key")).unwrap();
    let key = rcgen::KeyPair::from_pem(&pem).unwrap();
    let der = rcgen::SigningKey::sign(&key, signed.as_bytes()).unwrap();
    format!("{signed}.{}", B64.encode(raw_signature(&der)))
}

/// `r` and `s` of an ASN.1 signature over P-256, 32 bytes each.
fn raw_signature(der: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    let mut rest = &der[2..];
    for _ in 0..2 {
        let (number, after) = rest[2..].split_at(usize::from(rest[1]));
        let digits = &number[number.len().saturating_sub(32)..];
        raw.extend(std::iter::repeat_n(0, 32 - digits.len()));
        raw.extend(digits);
        rest = after;
    }
    raw
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

fn mount(path: &Path, token: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, token).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

#[tokio::test]
async fn a_wrong_expired_unbound_or_foreign_token_lets_no_agent_speak_for_a_node() {
    let Some(mut cluster) = cluster("tokens", Options::default().nodes(2)).await else { return };
    let admin = cluster.admin.clone();
    let (path, own) = {
        let agent = &cluster.agents["node-1"];
        (agent.token.clone(), agent.pod.clone())
    };
    let good = std::fs::read_to_string(&path).unwrap();
    objects::account(&admin, deploy::NAMESPACE, "other", &[]).await.unwrap();
    let mint = async |account: &'static str, audience, pod: Option<&Pod>| {
        tokens::mint(&admin, deploy::NAMESPACE, account, audience, pod).await.unwrap()
    };
    let foreign = std::fs::read_to_string(&cluster.agents["node-2"].token).unwrap();
    let mut forged = good.clone();
    forged.truncate(good.len() - 8);
    forged.push_str("AAAAAAAA");
    let cases = [
        ("not.a.token".to_owned(), "does not accept the token"),
        (forged, "does not accept the token"),
        (signed_again(&cluster, &good, now() - 7_200, now() - 3_600), "expired"),
        (mint(deploy::AGENT, None, Some(&own)).await, "audience"),
        (mint(deploy::AGENT, Some(AUDIENCE), None).await, "not bound to"),
        (mint("other", Some(AUDIENCE), None).await, "not of 'system:serviceaccount"),
        (foreign, "bound to node node-2, not to node-1"),
    ];
    let pod = cluster.create(&PodSpec::branch("web", "node-1")).await.unwrap();
    cluster.running("web", SOON).await.unwrap();
    cluster.delete("default", "web", true).await.unwrap();
    let from = cluster.ec2_state().await.unwrap().seq + 1;
    for (token, reason) in cases {
        mount(&path, &token);
        cluster.restart_agent("node-1").await.unwrap();
        refused(&cluster.agents["node-1"].health, reason).await;
        assert!(!seen_by_leader(&cluster, 0, "node-1").await, "{reason}");
    }
    // Nothing was taken from any of them: neither is the pod's end believed nor is a new pod served.
    cluster.create(&PodSpec::branch("later", "node-1")).await.unwrap();
    cluster.create(&PodSpec::branch("elsewhere", "node-2")).await.unwrap();
    cluster.running("elsewhere", SOON).await.unwrap();
    let later = cluster.pod("default", "later").await.unwrap().unwrap();
    assert!(later.annotations().is_empty());
    let state = cluster.ec2_state().await.unwrap();
    let own_uid = pod.uid();
    let tagged = |eni: &trunkline_sim::ec2::model::EniState| {
        eni.tags.get("trunkline.dev/pod-uid") == own_uid.as_ref()
    };
    assert!(state.enis.iter().any(tagged), "released on the word of an agent that was refused");
    let calls = cluster.ec2.log(from).await.unwrap();
    assert!(calls.iter().all(|call| call.action != "DeleteNetworkInterface"));

    // A session lives as long as its token, unless that is renewed in time.
    let life = |seconds: i64| signed_again(&cluster, &good, now() - 60, now() + seconds);
    let first = life(8);
    mount(&path, &first);
    cluster.restart_agent("node-1").await.unwrap();
    let health = cluster.agents["node-1"].health.clone();
    connected(&health).await;
    cluster.running("later", SOON).await.unwrap();
    cluster.released(&pod.uid().unwrap(), SOON).await.unwrap();
    refused(&health, "expired").await;
    mount(&path, &good);
    connected(&health).await;
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn one_agent_speaks_for_a_node_the_newest_of_the_machine_that_is_there() {
    let Some(mut cluster) = cluster("one agent", Options::default().nodes(2)).await else { return };
    let kept = cluster.create(&PodSpec::branch("kept", "node-1")).await.unwrap();
    cluster.running("kept", SOON).await.unwrap();

    // A second pod of the agent: the newer takes over, the older is refused and does not take it back.
    let mut old = cluster.agents.remove("node-1").unwrap();
    let created = |pod: &Pod| pod.metadata.creation_timestamp.clone().unwrap();
    // Creation times are whole seconds.
    poll::eventually("a second has passed", SOON, async || {
        if Timestamp::now().as_second() > created(&old.pod).0.as_second() + 1 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    cluster.start_agent("node-1").await.unwrap();
    let new = cluster.agents["node-1"].health.clone();
    connected(&new).await;
    refused(&old.health, "another agent of this node").await;
    poll::throughout("the newer one stays", Duration::from_secs(12), async || {
        let session = status(&new).await?["session"].clone();
        if session["state"] == "connected" { Ok(()) } else { Err(session.to_string()) }
    })
    .await
    .unwrap();
    old.process.must_run().unwrap();
    cluster.create(&PodSpec::branch("served", "node-1")).await.unwrap();
    cluster.running("served", SOON).await.unwrap();
    // When the newer one is gone, the older one serves again.
    cluster.stop_agent("node-1").await.unwrap();
    connected(&old.health).await;
    cluster.agents.insert("node-1".to_owned(), old);

    // The Node object of a living machine is made anew (S56): its agent keeps serving, nothing is released.
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let spec = async |name: &str| {
        let node = nodes.get(name).await.unwrap();
        let boot = node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.clone();
        let provider = node.spec.as_ref().unwrap().provider_id.clone().unwrap();
        let instance = provider.rsplit('/').next().unwrap().to_owned();
        objects::NodeSpec { name: name.to_owned(), instance, boot_id: boot, labels: Vec::new() }
    };
    let same = spec("node-1").await;
    nodes.delete("node-1", &DeleteParams::default()).await.unwrap();
    objects::node(&cluster.admin, &same).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    connected(&cluster.agents["node-1"].health).await;
    cluster.create(&PodSpec::branch("after", "node-1")).await.unwrap();
    cluster.running("after", SOON).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    let of_kept = |e: &&trunkline_sim::ec2::model::EniState| {
        e.tags.get("trunkline.dev/pod-uid") == kept.uid().as_ref() && e.association.is_some()
    };
    assert_eq!(state.enis.iter().filter(of_kept).count(), 1);

    // Another machine takes node-2's name (S55); the agent of the one before is not let in.
    cluster.nodes.kubelet("node-2", KubeletAction::PowerOff).await.unwrap();
    let before = spec("node-2").await;
    nodes.delete("node-2", &DeleteParams::default()).await.unwrap();
    cluster.ec2.terminate_instance(&before.instance).await.unwrap();
    let instance = cluster.ec2.add_instance(&InstanceSpec::default()).await.unwrap();
    let next = objects::NodeSpec {
        instance: instance.id.clone(),
        boot_id: "6f3c5d0e-0000-4000-8000-00000000beef".to_owned(),
        ..before
    };
    objects::node(&cluster.admin, &next).await.unwrap();
    cluster.restart_agent("node-2").await.unwrap();
    refused(&cluster.agents["node-2"].health, "machine that is gone").await;
    cluster.nodes.kubelet("node-2", KubeletAction::Reboot).await.unwrap();
    poll::eventually("the machine reports its boot", SOON, async || {
        let now = spec("node-2").await.boot_id;
        if now == next.boot_id { Err(now) } else { Ok(()) }
    })
    .await
    .unwrap();
    cluster.replace_agent("node-2").await.unwrap();
    connected(&cluster.agents["node-2"].health).await;
    cluster.create(&PodSpec::branch("second", "node-2")).await.unwrap();
    cluster.running("second", SOON).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    let trunk = state.trunk_of(&instance.id).unwrap().id.clone();
    let branch = cluster.annotated("second", SOON).await.unwrap();
    let association = state.eni(&branch[0].eni_id).unwrap().association.clone().unwrap();
    assert_eq!(association.trunk, trunk);
    cluster.finish().await.unwrap();
}

/// Runs the command line with `-o json` and reads what it says.
async fn asked(cluster: &Cluster, token: &Path, words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
    let text = cluster.trunkline(token, &words).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn followers_redirect_and_only_those_who_may_are_told_the_status() {
    let options = Options { agents: false, ..Options::default().nodes(2).coordinators(2) };
    let Some(mut cluster) = cluster("status", options).await else { return };
    let leader = cluster.led(SOON).await.unwrap();
    // Agents and the command line know the follower only.
    let leading = cluster.coordinators.remove(leader);
    for node in ["node-1", "node-2"] {
        cluster.start_agent(node).await.unwrap();
        connected(&cluster.agents[node].health).await;
    }
    let (_, metrics) = page(&cluster.coordinators[0].metrics, "/metrics").await.unwrap();
    let redirected = metrics
        .lines()
        .any(|line| line.contains("session_ends") && line.contains("end=\"redirected\""));
    assert!(redirected, "{metrics}");
    cluster.create(&PodSpec::branch("served", "node-1")).await.unwrap();
    let served = cluster.annotated("served", SOON).await.unwrap();
    cluster.running("served", SOON).await.unwrap();
    // A pod that waits: its policy names a group that does not exist.
    let lost = ["sg-0123456789abcdef0"];
    objects::policy(&cluster.admin, "default", "lost", &[("app", "waits")], &lost).await.unwrap();
    let waits = cluster.create(&PodSpec::branch("waits", "node-2")).await.unwrap();

    let viewer = cluster.viewer().await.unwrap();
    let status = asked(&cluster, &viewer, &["status"]).await;
    assert_eq!(status["leader_address"], leading.address());
    assert_eq!(status["cluster"], "demo");
    assert!(status["epoch"].as_u64().unwrap() >= 1, "{status}");
    assert_eq!(status["inventory"]["complete"], true);
    let nodes = poll::eventually("both nodes are ready", SOON, async || {
        let rows = asked(&cluster, &viewer, &["nodes"]).await;
        let ready = |row: &Value| row["state"] == "ready" && row["connected"] == true;
        if rows.as_array().unwrap().iter().all(ready) { Ok(rows) } else { Err(rows.to_string()) }
    })
    .await
    .unwrap();
    let names: BTreeSet<&str> =
        nodes.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["node-1", "node-2"]));
    for row in nodes.as_array().unwrap() {
        assert_eq!(row["managed"], true);
        assert_eq!(row["slots"]["limit"], 9);
    }
    let node = asked(&cluster, &viewer, &["node", "node-1"]).await;
    assert_eq!(node["branches"][0]["eni_id"], served[0].eni_id);
    assert_eq!(node["branches"][0]["vlan"], served[0].vlan);
    assert_eq!(node["trunk"]["eni_id"].as_str().unwrap().get(..4), Some("eni-"));
    let pod = asked(&cluster, &viewer, &["pod", "default/served"]).await;
    assert_eq!(pod["pods"].as_array().map_or(1, Vec::len), 1);
    assert!(pod.to_string().contains(&served[0].eni_id), "{pod}");
    // S81, S82: why it waits, with EC2's code, within 30 s.
    let waiting = poll::eventually("the wait is told", Duration::from_secs(30), async || {
        let rows = asked(&cluster, &viewer, &["waiting"]).await;
        let found = rows.as_array().unwrap().iter().find(|row| row["pod"]["name"] == "waits");
        found.filter(|row| row["ec2_code"] != "").cloned().ok_or_else(|| rows.to_string())
    })
    .await
    .unwrap();
    assert_eq!(waiting["ec2_code"], "InvalidGroup.NotFound", "{waiting}");
    assert_eq!(asked(&cluster, &viewer, &["waiting", "--node=node-1"]).await, json!([]));

    for (words, expected) in [
        (["status"].as_slice(), leading.address()),
        (&["nodes"], "node-2".to_owned()),
        (&["node", "node-1"], served[0].eni_id.clone()),
        (&["pod", "default/served"], served[0].eni_id.clone()),
        (&["waiting"], "default/waits".to_owned()),
    ] {
        let table = cluster.trunkline(&viewer, words).await.unwrap();
        assert!(table.contains(&expected), "{expected} is not in:\n{table}");
    }
    for (words, expected) in [
        (["node", "node-9"].as_slice(), "no such node"),
        (&["pod", "default/nobody"], "nothing is known"),
        (&["pods"], "'pods' is not a command"),
    ] {
        let error = cluster.trunkline(&viewer, words).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    // TokenReview and SubjectAccessReview: a bad token, a good one without the right, then with it.
    let file = cluster.folder().join("other.token");
    std::fs::write(&file, "not.a.token").unwrap();
    let error = cluster.trunkline(&file, &["status"]).await.unwrap_err().to_string();
    assert!(error.contains("does not accept the token"), "{error}");
    let agents = cluster.agents["node-1"].token.clone();
    let error = cluster.trunkline(&agents, &["status"]).await.unwrap_err().to_string();
    assert!(error.contains("not allowed") && error.contains("/trunkline/status"), "{error}");
    for words in
        [["nodes"].as_slice(), &["node", "node-1"], &["pod", "default/served"], &["waiting"]]
    {
        let error = cluster.trunkline(&agents, words).await.unwrap_err().to_string();
        assert!(error.contains("not allowed"), "{error}");
    }

    cluster.delete("default", "waits", true).await.unwrap();
    cluster.released(&waits.uid().unwrap(), SOON).await.unwrap();
    cluster.coordinators.insert(leader, leading);
    cluster.finish().await.unwrap();
}
