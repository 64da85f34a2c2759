//! The node simulator and the fault proxy on a real API server. What they show is evidence in every other suite, so the
//! order of what they show is checked here, without any agent or coordinator.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test's helpers")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use trunkline_sim::ec2::model::{EniSpec, InstanceSpec};
use trunkline_sim::node::model::{KubeletAction, LogEntry, What};
use trunkline_sim::node::{self, NodeSimClient};
use trunkline_sim::proxy;
use trunkline_sim::proxy::model::{EmptyVersion, FaultKind, FaultSpec, Match};
use trunkline_tests::control_plane::{self, ControlPlane, Options};
use trunkline_tests::objects::{self, ANNOTATION, PodSpec};
use trunkline_tests::{deploy, poll, skipped};

const WITHIN: Duration = Duration::from_secs(60);
const NODE: &str = "node-1";

async fn plane(test: &str, folder: &std::path::Path) -> Option<(ControlPlane, Client)> {
    if let Err(why) = control_plane::assets() {
        skipped(test, &why.to_string());
        return None;
    }
    let plane = ControlPlane::start(folder, Options::default()).await.unwrap();
    let admin = plane.admin().unwrap();
    for (_, document) in deploy::documents().unwrap() {
        if document["kind"] == "CustomResourceDefinition" {
            let crd = serde_json::from_value(document).unwrap();
            deploy::apply_one(&admin, crd).await.unwrap();
        }
    }
    objects::namespace(&admin, "default").await.unwrap();
    Some((plane, admin))
}

struct Nodes {
    admin: Client,
    sim: NodeSimClient,
    pods: Api<Pod>,
}

impl Nodes {
    /// Waits for a line of the record.
    async fn line(&self, uid: &str, what: What) -> LogEntry {
        poll::eventually(&format!("{what:?} of {uid}"), WITHIN, async || {
            let log = self.sim.log(0).await.map_err(|e| e.to_string())?;
            log.into_iter()
                .find(|l| l.uid == uid && l.what == what)
                .ok_or_else(|| "not in the record".to_owned())
        })
        .await
        .unwrap()
    }

    /// What happened to a pod, in order.
    async fn story(&self, uid: &str) -> Vec<What> {
        let log = self.sim.log(0).await.unwrap();
        log.into_iter().filter(|l| l.uid == uid).map(|l| l.what).collect()
    }

    async fn create(&self, spec: PodSpec) -> String {
        objects::pod(&self.admin, &spec).await.unwrap().uid().unwrap()
    }

    async fn annotate(&self, name: &str, vlan: u8, mac: &str) {
        let element = json!([{
            "eniId": format!("eni-0123456789abcde{vlan:02x}"), "ifAddress": mac, "privateIp": "10.0.1.17",
            "ipv6Addr": "", "vlanId": vlan, "subnetCidr": "10.0.1.0/24", "subnetV6Cidr": "",
            "associationID": "trunk-assoc-1",
        }]);
        let patch = json!({"metadata": {"annotations": {ANNOTATION: element.to_string()}}});
        self.pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn mac_of(&self, link: &str) -> Option<String> {
        let links = self.sim.links(NODE).await.unwrap();
        links.into_iter().find(|l| l.name == link).map(|l| l.mac)
    }

    async fn gone(&self, name: &str) {
        poll::eventually(&format!("{name} is gone"), WITHIN, async || {
            match self.pods.get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("still there".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_node_shows_what_a_real_one_shows_in_the_measured_order() {
    let folder = tempfile::Builder::new().prefix("tl").tempdir().unwrap();
    let Some((plane, admin)) = plane("node simulator", &folder.path().join("plane")).await else {
        return;
    };
    let links = match node::netns::probe().await {
        Ok(()) => node::links::Kind::Real,
        Err(why) => {
            skipped("node simulator with real links", &why.to_string());
            node::links::Kind::None
        }
    };
    let ec2 = trunkline_sim::ec2::Ec2Sim::start(trunkline_sim::ec2::config::Config::default())
        .await
        .unwrap();
    let ec2_client = ec2.client();
    let args = node::Args {
        bind: "127.0.0.1:0".parse().unwrap(),
        kubeconfig: None,
        ec2: Some(ec2.url()),
        root: folder.path().join("n"),
        nodes: Vec::new(),
        all_nodes: true,
        node_selector: String::new(),
        links,
        cgroup_driver: node::cgroup::Driver::Cgroupfs,
        cgroup_version: node::cgroup::Version::V2,
        family: node::cni::Family::V4,
        speed: 2.0,
    };
    let running = node::start(&args, admin.clone()).await.unwrap();
    let nodes = Nodes {
        admin: admin.clone(),
        sim: running.client(),
        pods: Api::namespaced(admin.clone(), "default"),
    };

    bring_up(&nodes, &ec2_client).await;
    graceful(&nodes).await;
    forced(&nodes).await;
    completed(&nodes).await;
    successor(&nodes).await;
    reboot(&nodes).await;
    static_pod(&nodes).await;

    let netns = nodes.sim.node(NODE).await.unwrap().unwrap().host_netns;
    running.shut_down().await;
    if let Some(netns) = netns {
        assert!(!std::path::Path::new(&netns).exists(), "the namespace is removed at the end");
    }
    drop(plane);
}

/// Node, CNINode, trunk, capacity.
async fn bring_up(nodes: &Nodes, ec2: &trunkline_sim::ec2::client::SimClient) {
    let instance = ec2.add_instance(&InstanceSpec::default()).await.unwrap();
    let spec = objects::NodeSpec {
        name: NODE.to_owned(),
        instance: instance.id.clone(),
        boot_id: "not-booted".to_owned(),
        labels: Vec::new(),
    };
    objects::node(&nodes.admin, &spec).await.unwrap();
    let all: Api<Node> = Api::all(nodes.admin.clone());
    poll::eventually("the boot id is in the status", WITHIN, async || {
        let node = all.get(NODE).await.map_err(|e| e.to_string())?;
        let told = node.status.and_then(|s| s.node_info).map(|i| i.boot_id).unwrap_or_default();
        let state = nodes.sim.node(NODE).await.map_err(|e| e.to_string())?.ok_or("not joined")?;
        let file = std::fs::read_to_string(state.boot_id_file).map_err(|e| e.to_string())?;
        if told == file.trim() { Ok(()) } else { Err(told) }
    })
    .await
    .unwrap();

    let cninodes: Api<DynamicObject> = Api::all_with(nodes.admin.clone(), &node::api::cninode());
    let mut cninode = DynamicObject::new(NODE, &node::api::cninode());
    cninode.data = json!({"spec": {"tags": {"a": "b"}}});
    poll::eventually("CNINodes are served", WITHIN, async || {
        cninodes.create(&PostParams::default(), &cninode).await
    })
    .await
    .unwrap();
    poll::eventually("the CNI wrote its feature", WITHIN, async || {
        let cninode = cninodes.get(NODE).await.map_err(|e| e.to_string())?;
        let spec = &cninode.data["spec"];
        let expected = json!({"tags": {"a": "b"}, "features": [{"name": "SecurityGroupsForPods", "value": ""}]});
        if *spec == expected { Ok(()) } else { Err(spec.to_string()) }
    })
    .await
    .unwrap();

    let trunk = EniSpec {
        interface_type: "trunk".to_owned(),
        attach_to: Some(instance.id.clone()),
        ..EniSpec::default()
    };
    let trunk = ec2.add_eni(&trunk).await.unwrap();
    let mac = ec2.state().await.unwrap().eni(&trunk).unwrap().mac.clone();
    poll::eventually("the trunk link is there", WITHIN, async || {
        match nodes.mac_of("eth1").await {
            Some(found) if found == mac => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    let patch = json!({"status": {"capacity": {ANNOTATION: "9"}}});
    all.patch_status(NODE, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    poll::eventually("capacity is copied to allocatable", WITHIN, async || {
        let node = all.get(NODE).await.map_err(|e| e.to_string())?;
        let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
        match allocatable.get(ANNOTATION) {
            Some(quantity) if quantity.0 == "9" && allocatable.contains_key("cpu") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

/// A pod waits for its annotation, runs with its address and link, and goes in order.
async fn graceful(nodes: &Nodes) {
    let uid = nodes.create(PodSpec::branch("graceful", NODE)).await;
    let refused = nodes.line(&uid, What::AddFailed).await;
    assert!(refused.detail.contains("no annotation"), "{}", refused.detail);
    nodes.annotate("graceful", 7, "02:00:00:00:00:07").await;
    nodes.line(&uid, What::Running).await;
    let pod = nodes.pods.get("graceful").await.unwrap();
    let status = pod.status.unwrap();
    assert_eq!(
        (status.phase.as_deref(), status.pod_ip.as_deref()),
        (Some("Running"), Some("10.0.1.17"))
    );
    assert_eq!(nodes.mac_of("vlan.eth.7").await.as_deref(), Some("02:00:00:00:00:07"));
    let shown = nodes.sim.pods().await.unwrap();
    assert!(shown.iter().any(|p| p.uid == uid && p.link_up && p.running && p.cgroup), "{shown:?}");
    let cgroups = nodes.sim.node(NODE).await.unwrap().unwrap().cgroup_root;
    let cgroup = std::path::Path::new(&cgroups).join(format!("kubepods/besteffort/pod{uid}"));
    assert!(cgroup.is_dir());

    objects::delete_pod(&nodes.admin, "default", "graceful", false).await.unwrap();
    nodes.gone("graceful").await;
    nodes.line(&uid, What::ObjectDeleted).await;
    let expected = [
        What::CgroupMade,
        What::AddFailed,
        What::Add,
        What::Running,
        What::Del,
        What::ProcessEnded,
        What::LinkGone,
        What::Ended,
        What::CgroupGone,
        What::ObjectDeleted,
    ];
    assert_eq!(nodes.story(&uid).await, expected);
    assert!(!cgroup.exists());
    assert_eq!(nodes.mac_of("vlan.eth.7").await, None);
}

/// The object goes first; link and cgroup follow, the cgroup last.
async fn forced(nodes: &Nodes) {
    let uid = nodes.create(PodSpec::branch("forced", NODE)).await;
    nodes.annotate("forced", 8, "02:00:00:00:00:08").await;
    nodes.line(&uid, What::Running).await;
    objects::delete_pod(&nodes.admin, "default", "forced", true).await.unwrap();
    nodes.gone("forced").await;
    nodes.line(&uid, What::CgroupGone).await;
    let story = nodes.story(&uid).await;
    let end: Vec<What> = story.into_iter().skip_while(|w| *w != What::Del).collect();
    let expected = [What::Del, What::ProcessEnded, What::LinkGone, What::CgroupGone];
    assert_eq!(end, expected);
}

/// A Job's link is gone before the API says Succeeded; the object stays until it is deleted.
async fn completed(nodes: &Nodes) {
    let spec = PodSpec::branch("job", NODE).label(node::pod::EXIT_AFTER, "500ms");
    let uid = nodes.create(spec).await;
    nodes.annotate("job", 9, "02:00:00:00:00:09").await;
    nodes.line(&uid, What::CgroupGone).await;
    let pod = nodes.pods.get("job").await.unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Succeeded"));
    let story = nodes.story(&uid).await;
    let at = |what| story.iter().position(|w| *w == what).unwrap();
    assert!(
        at(What::LinkGone) < at(What::Ended) && at(What::Ended) < at(What::CgroupGone),
        "{story:?}"
    );
    objects::delete_pod(&nodes.admin, "default", "job", false).await.unwrap();
    nodes.gone("job").await;
    assert_eq!(nodes.story(&uid).await.iter().filter(|w| **w == What::CgroupGone).count(), 1);
}

/// ADD deletes a link of its name; the late DEL of the first pod then takes the second one's (`real-node.md` §3).
async fn successor(nodes: &Nodes) {
    let spec = PodSpec::branch("first", NODE).annotation(node::pod::SLOW_DEL, "4s");
    let first = nodes.create(spec).await;
    nodes.annotate("first", 5, "02:00:00:00:00:51").await;
    nodes.line(&first, What::Running).await;
    objects::delete_pod(&nodes.admin, "default", "first", false).await.unwrap();
    nodes.line(&first, What::ProcessEnded).await;
    let second = nodes.create(PodSpec::branch("second", NODE)).await;
    nodes.annotate("second", 5, "02:00:00:00:00:52").await;
    let replaced = nodes.line(&second, What::LinkChanged).await;
    assert!(replaced.detail.contains("02:00:00:00:00:51"), "{}", replaced.detail);
    let taken = nodes.line(&first, What::LinkChanged).await;
    assert!(taken.detail.contains("02:00:00:00:00:52"), "{}", taken.detail);
    nodes.line(&first, What::LinkGone).await;
    let shown = nodes.sim.pods().await.unwrap();
    assert!(shown.iter().any(|p| p.uid == second && p.running && !p.link_up), "{shown:?}");
    objects::delete_pod(&nodes.admin, "default", "second", false).await.unwrap();
    nodes.gone("second").await;
}

/// A kubelet restart leaves pods alone; a reboot takes links and cgroups, and the pod starts again under the same UID.
async fn reboot(nodes: &Nodes) {
    use std::os::unix::fs::MetadataExt as _;
    let uid = nodes.create(PodSpec::branch("stays", NODE)).await;
    nodes.annotate("stays", 11, "02:00:00:00:00:11").await;
    nodes.line(&uid, What::Running).await;
    let state = nodes.sim.node(NODE).await.unwrap().unwrap();
    let ctime = || {
        let meta = std::fs::metadata(&state.kubelet_socket).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let (before, boot) = (ctime(), std::fs::read_to_string(&state.boot_id_file).unwrap());
    nodes.sim.kubelet(NODE, KubeletAction::Restart).await.unwrap();
    assert!(ctime() > before);
    assert!(nodes.mac_of("vlan.eth.11").await.is_some());
    nodes.sim.kubelet(NODE, KubeletAction::Reboot).await.unwrap();
    assert_ne!(std::fs::read_to_string(&state.boot_id_file).unwrap(), boot);
    poll::eventually("the pod runs again", WITHIN, async || {
        let pods = nodes.sim.pods().await.map_err(|e| e.to_string())?;
        pods.iter()
            .any(|p| p.uid == uid && p.running && p.link_up)
            .then_some(())
            .ok_or_else(|| format!("{pods:?}"))
    })
    .await
    .unwrap();
    assert_eq!(nodes.story(&uid).await.iter().filter(|w| **w == What::CgroupMade).count(), 2);
    objects::delete_pod(&nodes.admin, "default", "stays", false).await.unwrap();
    nodes.gone("stays").await;
}

/// A static pod's mirror comes back and its cgroup stays, until the manifest is taken away.
async fn static_pod(nodes: &Nodes) {
    let hash = "0123456789abcdef0123456789abcdef";
    let spec = PodSpec::branch("static-node-1", NODE)
        .plain()
        .annotation(node::pod::MIRROR, hash)
        .annotation(node::pod::HASH, hash);
    let first = nodes.create(spec).await;
    nodes.line(&first, What::Running).await;
    let cgroups = nodes.sim.node(NODE).await.unwrap().unwrap().cgroup_root;
    let cgroup = std::path::Path::new(&cgroups).join(format!("kubepods/besteffort/pod{hash}"));
    assert!(cgroup.is_dir());
    objects::delete_pod(&nodes.admin, "default", "static-node-1", true).await.unwrap();
    let second = poll::eventually("there is a new mirror", WITHIN, async || {
        match nodes.pods.get_opt("static-node-1").await {
            Ok(Some(pod)) if pod.uid().as_ref() != Some(&first) => Ok(pod.uid().unwrap()),
            Ok(_) => Err("not yet".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
    .unwrap();
    nodes.line(&second, What::Running).await;
    assert!(cgroup.is_dir());
    nodes.sim.remove_static(NODE, hash).await.unwrap();
    nodes.line(&second, What::CgroupGone).await;
    nodes.gone("static-node-1").await;
    assert!(!cgroup.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s01_the_proxy_makes_a_real_server_page_and_every_continue_token_expires() {
    let folder = tempfile::tempdir().unwrap();
    let Some((plane, admin)) = plane("fault proxy", folder.path()).await else { return };
    let args = proxy::Args {
        bind: "127.0.0.1:0".parse().unwrap(),
        upstream: plane.url().parse().unwrap(),
        ca: Some(plane.ca_file().to_owned()),
        insecure: false,
    };
    let running = proxy::start(&args).await.unwrap();
    let client = running.client();
    let mut config = kube::Config::new(running.url().parse().unwrap());
    config.auth_info.token = Some(plane.admin_token().to_owned().into());
    let pods: Api<Pod> = Api::all(Client::try_from(config).unwrap());
    for n in 0..5 {
        objects::pod(&admin, &PodSpec::branch(&format!("p{n}"), NODE)).await.unwrap();
    }
    let of_node = ListParams::default().fields(&format!("spec.nodeName={NODE}"));
    assert_eq!(pods.list(&of_node).await.unwrap().items.len(), 5);

    let kind = FaultKind::ExpiredPages { limit: 3, follow: false };
    let id = client.add(&FaultSpec::times(Match::agent_of(NODE), kind, 2)).await.unwrap();
    for _ in 0..2 {
        let page = pods.list(&of_node).await.unwrap();
        assert_eq!(page.items.len(), 3);
        let token = page.metadata.continue_.unwrap();
        let refused = pods.list(&of_node.clone().continue_token(&token)).await.unwrap_err();
        let kube::Error::Api(status) = refused else { panic!("{refused}") };
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    }
    assert_eq!(client.hits(id).await.unwrap(), 2);
    let whole = pods.list(&of_node).await.unwrap();
    assert_eq!(whole.items.len(), 5);
    let current: u64 = whole.metadata.resource_version.unwrap().parse().unwrap();

    for (version, is_old) in [(EmptyVersion::Behind(100), true), (EmptyVersion::Current, false)] {
        let kind = FaultKind::EmptyList { version };
        client.add(&FaultSpec::times(Match::agents(), kind, 1)).await.unwrap();
        let empty = pods.list(&of_node).await.unwrap();
        assert!(empty.items.is_empty());
        let said: u64 = empty.metadata.resource_version.unwrap().parse().unwrap();
        assert_eq!(said < current, is_old);
    }

    swallowed(&pods, &client, &admin, &current.to_string()).await;

    // The reply is lost, but the pod is made.
    let lost = FaultSpec::times(Match::request("POST", "/pods"), FaultKind::LostReply, 1);
    client.add(&lost).await.unwrap();
    let mine: Api<Pod> = Api::namespaced(pods.clone().into_client(), "default");
    let object = PodSpec::branch("lost", NODE).object().unwrap();
    mine.create(&PostParams::default(), &object).await.unwrap_err();
    assert!(Api::<Pod>::namespaced(admin, "default").get_opt("lost").await.unwrap().is_some());
}

/// A watch through the proxy streams, and misses only the DELETED event that is swallowed.
async fn swallowed(pods: &Api<Pod>, client: &proxy::ProxyClient, admin: &Client, version: &str) {
    use futures::TryStreamExt as _;
    let params = kube::api::WatchParams::default().fields(&format!("spec.nodeName={NODE}"));
    let mut events = Box::pin(pods.watch(&params, version).await.unwrap());
    let kind = FaultKind::SwallowDelete { name: Some("p0".to_owned()) };
    let id = client.add(&FaultSpec::new(Match::agents(), kind)).await.unwrap();
    objects::delete_pod(admin, "default", "p0", true).await.unwrap();
    objects::delete_pod(admin, "default", "p1", true).await.unwrap();
    let mut deleted = Vec::new();
    while deleted.is_empty() {
        let event =
            tokio::time::timeout(WITHIN, events.try_next()).await.unwrap().unwrap().unwrap();
        if let kube::api::WatchEvent::Deleted(pod) = event {
            deleted.push(pod.name_any());
        }
    }
    assert_eq!(deleted, ["p1"]);
    assert_eq!(client.hits(id).await.unwrap(), 1);
}
