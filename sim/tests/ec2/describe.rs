//! Filters and pages of DescribeNetworkInterfaces, DescribeInstances and DescribeInstanceTypes; tags.

use std::collections::BTreeSet;

use serde_json::json;
use trunkline_sim::ec2::fault::PageFault;
use trunkline_sim::ec2::model::EniSpec;

use super::*;

#[tokio::test]
async fn filters_are_anded_their_values_ored_and_wildcards_work() {
    let sim = Sim::plain().await;
    let tagged = |cluster: &str, owner: &str| EniSpec {
        tags: [
            (format!("kubernetes.io/cluster/{cluster}"), "owned".into()),
            ("eks:eni:owner".into(), owner.into()),
        ]
        .into(),
        ..EniSpec::default()
    };
    let ours = sim.client.add_eni(&tagged("blue", "eks-vpc-resource-controller")).await.unwrap();
    let cni = sim.client.add_eni(&tagged("blue", "amazon-vpc-cni")).await.unwrap();
    sim.client.add_eni(&tagged("green", "eks-vpc-resource-controller")).await.unwrap();
    let inventory = [
        ("Filter.1.Name", "tag:kubernetes.io/cluster/blue"),
        ("Filter.1.Value.1", "owned"),
        ("Filter.2.Name", "tag:eks:eni:owner"),
        ("Filter.2.Value.1", "eks-vpc-resource-controller"),
    ];
    assert_eq!(sim.listed(&inventory).await, [ours.as_str()]);
    let mut either = inventory.to_vec();
    either.push(("Filter.2.Value.2", "amazon-*"));
    let both: BTreeSet<String> = sim.listed(&either).await.into_iter().collect();
    assert_eq!(both, BTreeSet::from([ours.clone(), cni]));
    let mut key = inventory.to_vec();
    key.extend([("Filter.3.Name", "tag-key"), ("Filter.3.Value.1", "nobody")]);
    assert!(sim.listed(&key).await.is_empty());
    let truth = sim.truth(&ours).await.unwrap();
    for (name, value) in [
        ("mac-address", truth.mac.as_str()),
        ("private-ip-address", &truth.ipv4.to_string()),
        ("network-interface-id", &ours),
    ] {
        assert_eq!(
            sim.listed(&[("Filter.1.Name", name), ("Filter.1.Value.1", value)]).await,
            [ours.as_str()]
        );
    }
    let free = [("Filter.1.Name", "status"), ("Filter.1.Value.1", "available")];
    assert_eq!(sim.listed(&free).await.len(), 3);
    sim.client.set_switches(&json!({"unknown_filter_code": "InvalidFilter"})).await.unwrap();
    let odd = [("Filter.1.Name", "colour"), ("Filter.1.Value.1", "x")];
    sim.refused("DescribeNetworkInterfaces", &odd, 400, "InvalidFilter").await;
}

#[tokio::test]
async fn attachments_can_be_filtered_for() {
    let sim = Sim::plain().await;
    let (instance, trunk, _) = sim.trunk("m5.large").await;
    let of_instance =
        [("Filter.1.Name", "attachment.instance-id"), ("Filter.1.Value.1", instance.as_str())];
    assert_eq!(sim.listed(&of_instance).await.len(), 2);
    let mut index = of_instance.to_vec();
    index.extend([("Filter.2.Name", "attachment.device-index"), ("Filter.2.Value.1", "2")]);
    assert_eq!(sim.listed(&index).await, [trunk.as_str()]);
    let shown = sim.ok("DescribeNetworkInterfaces", &[("NetworkInterfaceId.1", &trunk)]).await;
    assert!(shown.body.contains(&format!("<instanceId>{instance}</instanceId>")));
    let shown = sim.ok("DescribeInstances", &[("InstanceId.1", &instance)]).await;
    assert_eq!(shown.elements("interfaceType").collect::<Vec<_>>(), ["interface", "trunk"]);
    assert_eq!(shown.elements("instanceId").count(), 1, "the attachment inside names no instance");
    assert_eq!(shown.element("instanceType"), Some("m5.large"));
}

async fn pages(sim: &Sim, size: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut params = vec![("MaxResults", size)];
        params.extend(token.as_deref().map(|t| ("NextToken", t)));
        let answer = sim.ok("DescribeNetworkInterfaces", &params).await;
        pages.push(answer.elements("networkInterfaceId").map(ToOwned::to_owned).collect());
        token = answer.element("nextToken").map(ToOwned::to_owned);
        if token.as_deref().is_none_or(str::is_empty) || pages.len() > 9 {
            return pages;
        }
    }
}

#[tokio::test]
async fn pages_hold_everything_once_and_page_faults_bend_them() {
    let sim = Sim::plain().await;
    for _ in 0..12 {
        sim.eni(&[]).await;
    }
    let whole: Vec<String> = pages(&sim, "5").await.concat();
    assert_eq!(whole.len(), 12);
    assert_eq!(whole.iter().collect::<BTreeSet<_>>().len(), 12);

    let fault = |how| Fault::on("DescribeNetworkInterfaces", FaultKind::Page { how });
    sim.inject(fault(PageFault::Empty).from_nth(2).times(1)).await;
    let with_empty = pages(&sim, "5").await;
    assert_eq!(with_empty.iter().map(Vec::len).collect::<Vec<_>>(), [5, 0, 5, 2]);
    sim.client.clear_faults(None).await.unwrap();

    sim.inject(fault(PageFault::SkipItem).from_nth(2).times(1)).await;
    assert_eq!(pages(&sim, "5").await.concat().len(), 11);
    sim.client.clear_faults(None).await.unwrap();

    sim.inject(fault(PageFault::EmptyToken)).await;
    let last = sim.ok("DescribeNetworkInterfaces", &[("MaxResults", "1000")]).await;
    assert_eq!(last.element("nextToken"), Some(""));
    sim.client.clear_faults(None).await.unwrap();

    sim.inject(fault(PageFault::RepeatToken).from_nth(2)).await;
    assert_eq!(pages(&sim, "5").await.len(), 10, "it would go on for ever");
}

#[tokio::test]
async fn a_page_token_dies_and_belongs_to_its_action() {
    let sim = Sim::with(json!({"page_token_ms": 60_000})).await;
    for _ in 0..6 {
        sim.eni(&[]).await;
    }
    let first = sim.ok("DescribeNetworkInterfaces", &[("MaxResults", "5")]).await;
    let token = first.element("nextToken").unwrap();
    let next = [("MaxResults", "5"), ("NextToken", token)];
    sim.refused("DescribeSubnets", &next, 400, "InvalidPaginationToken").await;
    assert_eq!(
        sim.ok("DescribeNetworkInterfaces", &next).await.elements("networkInterfaceId").count(),
        1
    );
    sim.client.set_switches(&json!({"page_token_ms": 0})).await.unwrap();
    let first = sim.ok("DescribeNetworkInterfaces", &[("MaxResults", "5")]).await;
    let next = [("MaxResults", "5"), ("NextToken", first.element("nextToken").unwrap())];
    sim.refused("DescribeNetworkInterfaces", &next, 400, "InvalidPaginationToken").await;
}

#[tokio::test]
async fn a_large_account_must_page_or_filter_narrowly() {
    let sim = Sim::with(json!({"limits": {"unpaged_enis": 1}})).await;
    sim.eni(&[]).await;
    sim.eni(&[]).await;
    let by_tag = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "x")];
    sim.refused("DescribeNetworkInterfaces", &by_tag, 400, "OperationNotPermitted").await;
    let vpc = sim.client.state().await.unwrap().vpc;
    sim.ok("DescribeNetworkInterfaces", &[("Filter.1.Name", "vpc-id"), ("Filter.1.Value.1", &vpc)])
        .await;
    assert_eq!(sim.listed(&[]).await.len(), 2);
}

#[tokio::test]
async fn instance_types_tell_limits_but_nothing_of_trunks() {
    let sim = Sim::plain().await;
    let answer = sim.ok("DescribeInstanceTypes", &[("InstanceType.1", "p4d.24xlarge")]).await;
    assert_eq!(answer.element("maximumNetworkCards"), Some("4"));
    assert_eq!(answer.element("maximumNetworkInterfaces"), Some("60"));
    assert_eq!(answer.element("ipv4AddressesPerInterface"), Some("50"));
    assert!(!answer.body.to_lowercase().contains("trunk"));
    let page = sim.ok("DescribeInstanceTypes", &[("MaxResults", "100")]).await;
    assert_eq!(page.elements("instanceType").count(), 100);
    assert!(page.element("nextToken").is_some());
}

#[tokio::test]
async fn tags_are_set_overwritten_and_deleted_as_documented() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[]).await;
    let id = ("ResourceId.1", eni.as_str());
    let set =
        [id, ("Tag.1.Key", "a"), ("Tag.1.Value", "1"), ("Tag.2.Key", "b"), ("Tag.2.Value", "")];
    sim.ok("CreateTags", &set).await;
    sim.ok("CreateTags", &[id, ("Tag.1.Key", "a"), ("Tag.1.Value", "2")]).await;
    // An empty value deletes only an empty one.
    sim.ok("DeleteTags", &[id, ("Tag.1.Key", "a"), ("Tag.1.Value", "")]).await;
    sim.ok("DeleteTags", &[id, ("Tag.1.Key", "b"), ("Tag.1.Value", "")]).await;
    assert_eq!(sim.truth(&eni).await.unwrap().tags, [("a".to_owned(), "2".to_owned())].into());
    sim.ok("DeleteTags", &[id]).await;
    assert!(sim.truth(&eni).await.unwrap().tags.is_empty());
    let keys: Vec<(String, String)> =
        (1..=51).map(|n| (format!("Tag.{n}.Key"), format!("k{n}"))).collect();
    let mut many: Vec<(&str, &str)> = vec![id];
    many.extend(keys.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    sim.refused("CreateTags", &many, 400, "TagLimitExceeded").await;
    sim.ok("CreateTags", &many[..51]).await;
}
