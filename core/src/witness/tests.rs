use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::fact::{GoneBy, OverKind, ReleaseFacts, Way};
use crate::id::{Epoch, TermNonce};
use crate::view::{Kubelet, Link, LinkKind, Links, PodPhase};

const OWN: &str = "agent-pod";

struct Bench {
    witness: Witness,
    now: Moment,
    start: u64,
    cgroups: BTreeSet<PodUid>,
    links: Vec<Link>,
    kubelet_silent: bool,
    sent: Vec<FromAgent>,
    actions: Vec<Action>,
}

fn uid(n: u32) -> PodUid {
    format!("uid-{n}").parse().unwrap()
}

fn eni(n: u32) -> EniId {
    format!("eni-{n:08x}").parse().unwrap()
}

fn mac(n: u8) -> MacAddress {
    MacAddress::from_octets([2, 0, 0, 0, 0, n]).unwrap()
}

fn vlan(n: i64) -> VlanId {
    VlanId::new(n).unwrap()
}

fn link(n: u8) -> Link {
    Link {
        index: 100 + u32::from(n),
        name: format!("vlan.eth.{n}"),
        kind: LinkKind::Other("macvlan".into()),
        mac: Some(mac(n)),
        parent: Some(2),
    }
}

fn trunk_link() -> Link {
    Link {
        index: 2,
        name: "eth1".into(),
        kind: LinkKind::Other(String::new()),
        mac: Some(mac(200)),
        parent: None,
    }
}

fn pod(n: u32) -> Pod {
    Pod {
        pod: PodRef {
            uid: uid(n),
            namespace: "ns".parse().unwrap(),
            name: format!("pod-{n}").parse().unwrap(),
        },
        labels: BTreeMap::new(),
        account: None,
        phase: PodPhase::Running,
        deleting: false,
        mirror: false,
        config_hash: None,
        requested: 1,
        odd_request: None,
        annotation: None,
    }
}

fn owned(n: u32) -> OwnedBranch {
    OwnedBranch {
        pod: pod(n).pod,
        mirror: false,
        kubelet_uid: Some(uid(n)),
        eni: eni(n),
        mac: mac(u8::try_from(n).unwrap()),
        vlan: vlan(i64::from(n)),
    }
}

fn origin() -> Origin {
    Origin { session: "s".parse().unwrap(), epoch: Epoch(1), nonce: TermNonce(1) }
}

impl Bench {
    /// A connected agent with pod 1 running, its branch owned and its link up.
    fn running() -> Self {
        let mut bench = Self::started(None);
        bench.connect();
        bench.cgroups.insert(uid(1));
        bench.links.push(link(1));
        bench.list(&[pod(1)]);
        bench.told(ToAgent::OwnedAll(vec![owned(1)]));
        bench.look();
        bench.sent.clear();
        bench
    }

    fn started(journal: Option<Journal>) -> Self {
        let now = Moment(1_000_000);
        Self {
            witness: Witness::new(
                OWN.parse().unwrap(),
                "boot".parse().unwrap(),
                journal,
                Timing::default(),
                now,
            ),
            now,
            start: 1,
            cgroups: BTreeSet::from([OWN.parse().unwrap()]),
            links: vec![trunk_link()],
            kubelet_silent: false,
            sent: vec![],
            actions: vec![],
        }
    }

    fn connect(&mut self) {
        self.see(Sighting::Connected(origin()));
        self.told(ToAgent::Trunk(Some(mac(200))));
        self.look();
    }

    fn see(&mut self, sighting: Sighting) {
        self.now = self.now.plus(Duration::from_millis(10));
        for action in self.witness.step(sighting, self.now) {
            match action {
                Action::Send(message) => self.sent.push(message),
                other => self.actions.push(other),
            }
        }
    }

    fn told(&mut self, message: ToAgent) {
        self.see(Sighting::Told(message));
    }

    fn list(&mut self, pods: &[Pod]) {
        let mut snapshot = Snapshot::begin();
        for pod in pods {
            snapshot.add(pod.clone());
        }
        self.see(Sighting::PodsListed(snapshot.close(ResourceVersion::new("5").unwrap())));
    }

    fn look(&mut self) {
        let kubelet = if self.kubelet_silent {
            Kubelet::Silent
        } else {
            Kubelet::Alive(KubeletStart(self.start))
        };
        let look = Look {
            at: self.now.plus(Duration::from_millis(5)),
            boot: "boot".parse().unwrap(),
            kubelet_before: kubelet,
            cgroups: Ok(self.cgroups.clone()),
            links: Ok(Links(self.links.clone())),
            kubelet_after: kubelet,
        };
        self.now = self.now.plus(Duration::from_millis(5));
        self.see(Sighting::Look(look));
    }

    /// Looks every `gap` for `time`.
    fn look_for(&mut self, time: Duration, gap: Duration) {
        let end = self.now.plus(time);
        while self.now < end {
            self.now = self.now.plus(gap);
            self.look();
        }
    }

    fn releases(&self) -> Vec<&ReleaseFacts> {
        let mut releases = Vec::new();
        for message in &self.sent {
            if let FromAgent::Release(reported) = message {
                releases.push(reported.facts());
            }
        }
        releases
    }

    fn suspects(&self) -> usize {
        self.sent.iter().filter(|m| matches!(m, FromAgent::Suspect(_))).count()
    }

    fn everything_gone(&mut self) {
        self.cgroups.remove(&uid(1));
        self.links.retain(|l| l.name == "eth1");
    }
}

#[test]
fn way_a_states_the_release_once_cgroup_and_link_are_gone() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.look();
    assert!(bench.releases().is_empty(), "the cgroup is still there");
    bench.cgroups.remove(&uid(1));
    bench.look();
    assert!(bench.releases().is_empty(), "the link is still there");
    bench.everything_gone();
    bench.look();
    let facts = bench.releases()[0].clone();
    assert_eq!((facts.way, facts.over), (Way::SeenAndGone, OverKind::Gone(GoneBy::WatchDeleted)));
    assert_eq!(facts.enis, BTreeSet::from([eni(1)]));
}

#[test]
fn a_live_pod_whose_cgroup_is_missing_is_no_case() {
    let mut bench = Bench::running();
    bench.everything_gone();
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    assert_eq!(bench.suspects(), 0);
}

#[test]
fn s01_an_empty_list_only_makes_suspects_and_alive_makes_the_view_stale() {
    let mut bench = Bench::running();
    bench.everything_gone();
    bench.list(&[]);
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    assert!(bench.suspects() > 1, "a suspicion is repeated");
    bench.actions.clear();
    bench.told(ToAgent::Alive(uid(1)));
    assert!(bench.actions.contains(&Action::Relist));
    assert!(bench.sent.contains(&FromAgent::Pods(Err(Blind::Stale))));
}

#[test]
fn an_alive_that_comes_after_a_list_that_shows_the_pod_leaves_that_list_good() {
    let mut bench = Bench::running();
    bench.list(&[]);
    bench.look();
    bench.list(&[pod(1)]);
    bench.actions.clear();
    bench.sent.clear();
    bench.told(ToAgent::Alive(uid(1)));
    assert!(!bench.actions.contains(&Action::Relist));
    assert!(!bench.sent.contains(&FromAgent::Pods(Err(Blind::Stale))));
    // And it takes no evidence away that rests on something else.
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look();
    assert_eq!(bench.releases().len(), 1);
}

#[test]
fn gone_from_the_coordinator_opens_a_case() {
    let mut bench = Bench::running();
    bench.list(&[]);
    bench.told(ToAgent::Gone(uid(1)));
    bench.everything_gone();
    bench.look();
    assert_eq!(bench.releases()[0].over, OverKind::Gone(GoneBy::Coordinator));
}

#[test]
fn way_b_needs_five_minutes_without_a_gap() {
    let mut bench = Bench::running();
    bench.everything_gone();
    bench.start = 2; // the kubelet restarted: what was seen before no longer counts
    bench.look();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.look_for(Duration::from_secs(200), Duration::from_secs(5));
    bench.now = bench.now.plus(Duration::from_secs(11)); // suspended
    bench.look_for(Duration::from_secs(290), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    bench.look_for(Duration::from_secs(20), Duration::from_secs(5));
    assert_eq!(bench.releases()[0].way, Way::Slow);
}

#[test]
fn a_kubelet_restart_withdraws_the_local_facts() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look();
    assert_eq!(bench.releases().len(), 1);
    bench.sent.clear();
    bench.start = 2;
    bench.look_for(Duration::from_secs(280), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    bench.look_for(Duration::from_secs(40), Duration::from_secs(5));
    assert_eq!(bench.releases()[0].way, Way::Slow);
}

/// The kubelet restarts while pod 1 runs; `between` is what happens until the pod is deleted and everything goes.
fn way_after_a_kubelet_start(between: impl FnOnce(&mut Bench)) -> Option<Way> {
    let mut bench = Bench::running();
    bench.start = 2;
    bench.look();
    between(&mut bench);
    bench.sent.clear();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look();
    bench.releases().first().map(|facts| facts.way)
}

#[test]
fn a_cgroup_left_over_from_before_the_kubelets_start_proves_nothing_by_going() {
    let seconds = Duration::from_secs;
    assert_eq!(way_after_a_kubelet_start(|_| {}), None);
    assert_eq!(way_after_a_kubelet_start(|b| b.look_for(seconds(290), seconds(5))), None);
    let long = way_after_a_kubelet_start(|b| b.look_for(seconds(301), seconds(5)));
    assert_eq!(long, Some(Way::SeenAndGone), "it outlasted what the kubelet throws out");
    let asleep = way_after_a_kubelet_start(|b| {
        b.look_for(seconds(200), seconds(5));
        b.look_for(seconds(105), seconds(35));
        b.look_for(seconds(200), seconds(5));
    });
    assert_eq!(asleep, None, "nobody saw what happened in the gaps");
    let made_anew = way_after_a_kubelet_start(|b| {
        b.cgroups.remove(&uid(1));
        b.look();
        b.cgroups.insert(uid(1));
        b.look();
    });
    assert_eq!(made_anew, Some(Way::SeenAndGone), "this kubelet made it");
}

#[test]
fn what_inotify_tells_of_a_left_over_cgroup_does_not_count_either() {
    let told = way_after_a_kubelet_start(|b| {
        b.see(Sighting::CgroupAppeared(uid(1)));
        b.look();
    });
    assert_eq!(told, None);
    let gone_by_the_next_look =
        way_after_a_kubelet_start(|b| b.see(Sighting::CgroupAppeared(uid(1))));
    assert_eq!(gone_by_the_next_look, None);
}

#[test]
fn a_silent_kubelet_adds_nothing() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.kubelet_silent = true;
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
}

#[test]
fn a_cgroup_tree_without_the_agents_own_pod_is_no_evidence() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.cgroups.clear();
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    assert_eq!(bench.witness.heartbeat().cgroups, Some(Blind::OwnPodMissing));
}

#[test]
fn a_namespace_without_the_trunk_is_no_evidence() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.links.clear();
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    assert_eq!(bench.witness.heartbeat().links, Some(Blind::TrunkLinkMissing));
}

#[test]
fn a_link_that_comes_back_takes_the_statement_back() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look();
    bench.sent.clear();
    bench.links.push(link(1));
    bench.look_for(Duration::from_secs(60), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
}

#[test]
fn a_barrier_is_answered_from_a_look_that_began_after_it() {
    let mut bench = Bench::running();
    bench.told(ToAgent::Barrier { question: 7, uids: BTreeSet::from([uid(1)]) });
    assert!(!bench.sent.iter().any(|m| matches!(m, FromAgent::Barrier(_))));
    assert_eq!(bench.witness.next_look(), Duration::ZERO);
    bench.look();
    let reply = bench.sent.iter().find_map(|m| match m {
        FromAgent::Barrier(reply) => Some(reply.clone()),
        _ => None,
    });
    let reply = reply.unwrap();
    assert_eq!(reply.present.get(&uid(1)), Some(&Some(true)));
    assert_eq!(reply.vlans, Some(BTreeSet::from([vlan(1)])));
}

#[test]
fn a_barrier_on_an_invalid_view_says_unknown() {
    let mut bench = Bench::running();
    bench.links.clear();
    bench.told(ToAgent::Barrier { question: 7, uids: BTreeSet::from([uid(1)]) });
    bench.look();
    let unknown = bench.sent.iter().any(|m| matches!(m, FromAgent::Barrier(r) if r.present.get(&uid(1)) == Some(&None) && r.vlans.is_none()));
    assert!(unknown);
}

#[test]
fn what_was_seen_survives_a_restart_within_the_boot() {
    let bench = Bench::running();
    let journal = bench.witness.journal();
    let mut next = Bench::started(Some(journal));
    next.list(&[pod(1)]);
    next.connect();
    next.told(ToAgent::OwnedAll(vec![owned(1)]));
    next.see(Sighting::PodDeleted(pod(1).pod));
    next.look();
    assert_eq!(next.releases()[0].way, Way::SeenAndGone);
}

#[test]
fn a_journal_of_another_boot_says_nothing() {
    let mut journal = Bench::running().witness.journal();
    journal.boot = "other".parse().unwrap();
    let bench = Bench::started(Some(journal));
    assert!(bench.witness.journal().seen.is_empty() && bench.witness.journal().vlans.is_empty());
}

/// Found by the simulation (seed 7): deleted after a cooldown, link never made; the next term handed the VLAN on at once.
#[test]
fn a_vlan_counts_as_used_until_its_branch_goes_although_no_link_was_ever_seen() {
    let used = |bench: &mut Bench| {
        bench.sent.clear();
        bench.see(Sighting::Disconnected);
        bench.connect();
        bench.sent.iter().find_map(|m| match m {
            FromAgent::VlansUsed(used) => Some(used.as_ref()?.get(&vlan(2)).copied()),
            _ => None,
        })
    };
    let mut bench = Bench::running();
    bench.told(ToAgent::OwnedChanged { added: vec![owned(2)], removed: vec![] });
    bench.look_for(Timing::default().vlan_rest_unseen, Duration::from_secs(5));
    assert_eq!(used(&mut bench).flatten(), Some(Duration::ZERO), "while a branch has it");
    let mut journal = bench.witness.journal();
    journal.since = Moment(0);
    bench.told(ToAgent::OwnedChanged { added: vec![], removed: vec![owned(2).eni] });
    bench.look_for(Duration::from_secs(60), Duration::from_secs(5));
    let age = used(&mut bench).flatten().unwrap();
    assert!(age >= Duration::from_secs(60) && age < Duration::from_secs(62), "{age:?}");
    let mut restarted = Bench::started(Some(journal));
    restarted.now = restarted.now.plus(Duration::from_secs(1));
    restarted.connect();
    let age = used(&mut restarted).flatten().unwrap();
    assert!(age < Duration::from_secs(2), "it may have gone while the agent was away: {age:?}");
}

#[test]
fn a_static_pod_is_followed_by_its_config_hash() {
    let mut bench = Bench::running();
    let hash: PodUid = "abcdef".parse().unwrap();
    let mut mirror = pod(2);
    mirror.mirror = true;
    mirror.config_hash = Some(hash.clone());
    bench.cgroups.insert(hash.clone());
    bench.list(&[pod(1), mirror.clone()]);
    let mut branch = owned(2);
    (branch.mirror, branch.kubelet_uid) = (true, Some(hash.clone()));
    bench.told(ToAgent::OwnedChanged { added: vec![branch], removed: vec![] });
    bench.look();
    bench.see(Sighting::PodDeleted(mirror.pod.clone()));
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty(), "losing the mirror alone never suffices");
    bench.cgroups.remove(&hash);
    bench.look();
    assert_eq!(bench.releases()[0].uid, uid(2));
}

#[test]
fn a_mirror_pod_whose_hash_is_unknown_is_kept() {
    let mut bench = Bench::running();
    let mut mirror = pod(2);
    mirror.mirror = true;
    bench.list(&[pod(1), mirror.clone()]);
    bench.see(Sighting::PodDeleted(mirror.pod));
    bench.look_for(Duration::from_secs(900), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
}

#[test]
fn a_short_lived_cgroup_between_two_looks_counts_as_seen() {
    let mut bench = Bench::running();
    bench.list(&[pod(1), pod(2)]);
    bench.see(Sighting::CgroupAppeared(uid(2)));
    bench.look();
    bench.see(Sighting::PodDeleted(pod(2).pod));
    bench.look();
    assert_eq!(bench.releases()[0].way, Way::SeenAndGone);
}

#[test]
fn a_statement_is_repeated_until_deleted_is_said() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look_for(Duration::from_secs(60), Duration::from_secs(1));
    let before = bench.releases().len();
    assert!((5..=7).contains(&before), "{before}");
    bench.told(ToAgent::Ack(uid(1), Ack::Deleted));
    bench.look_for(Duration::from_secs(60), Duration::from_secs(1));
    assert_eq!(bench.releases().len(), before);
}

#[test]
fn a_new_session_is_told_everything_and_the_statement_again() {
    let mut bench = Bench::running();
    bench.see(Sighting::PodDeleted(pod(1).pod));
    bench.everything_gone();
    bench.look();
    bench.sent.clear();
    bench.connect();
    assert!(bench.sent.iter().any(|m| matches!(m, FromAgent::Pods(Ok(_)))));
    assert!(bench.sent.iter().any(|m| matches!(m, FromAgent::VlansUsed(_))));
    assert!(bench.releases().is_empty(), "not before the coordinator has told what it owns");
    bench.told(ToAgent::OwnedAll(vec![owned(1)]));
    assert_eq!(bench.releases().len(), 1);
}

#[test]
fn memory_follows_the_node() {
    let mut bench = Bench::running();
    for n in 2..200 {
        bench.cgroups.insert(uid(n));
        bench.look();
        bench.cgroups.remove(&uid(n));
        bench.look();
    }
    bench.list(&[pod(1)]);
    let seen: Vec<PodUid> = bench.witness.journal().seen.into_keys().collect();
    assert_eq!(
        seen,
        [uid(1)],
        "the agent's own pod may be left over from before the kubelet's start"
    );
}

#[test]
fn a_suspicion_that_was_contradicted_is_not_repeated_before_its_time() {
    let mut bench = Bench::running();
    bench.list(&[]);
    for _ in 0..10 {
        bench.told(ToAgent::Alive(uid(1)));
        bench.list(&[]); // a replica that lags
    }
    assert_eq!(bench.suspects(), 1);
    bench.now = bench.now.plus(Duration::from_secs(10));
    bench.see(Sighting::Tick);
    assert_eq!(bench.suspects(), 2);
}

#[test]
fn the_slow_way_begins_anew_when_the_link_of_a_branch_shows() {
    let mut bench = Bench::started(None);
    bench.connect();
    bench.links.push(link(1));
    bench.list(&[pod(1)]);
    bench.see(Sighting::PodDeleted(pod(1).pod));
    // The coordinator has not told the branch yet, so its link is not looked for.
    bench.look_for(Duration::from_secs(310), Duration::from_secs(5));
    bench.told(ToAgent::OwnedAll(vec![owned(1)]));
    bench.look();
    bench.sent.clear();
    bench.everything_gone();
    bench.look_for(Duration::from_secs(290), Duration::from_secs(5));
    assert!(bench.releases().is_empty());
    bench.look_for(Duration::from_secs(20), Duration::from_secs(5));
    assert_eq!(bench.releases()[0].way, Way::Slow);
}

#[test]
fn links_are_told_in_full_after_the_trunk_was_withdrawn_and_named_again() {
    let mut bench = Bench::running();
    bench.told(ToAgent::Trunk(None));
    bench.told(ToAgent::Trunk(Some(mac(200))));
    bench.look();
    assert!(bench.sent.iter().any(|m| matches!(m, FromAgent::Links(Ok(_)))));
}

#[test]
fn memory_follows_the_node_without_a_new_list_and_while_blind() {
    let mut bench = Bench::running();
    for n in 2..2_000 {
        bench.cgroups.insert(uid(n));
        bench.look();
        bench.cgroups.remove(&uid(n));
        bench.look();
    }
    assert!(bench.witness.journal().seen.len() < 600, "{}", bench.witness.journal().seen.len());
    bench.cgroups.clear();
    for n in 2_000..4_000 {
        bench.see(Sighting::CgroupAppeared(uid(n)));
        bench.look();
    }
    assert!(bench.witness.unplaced.len() < 10, "{}", bench.witness.unplaced.len());
    assert!(bench.witness.suspects.len() < 10);
}

// === healing in place ===

fn set_mac(request: u64) -> SetMac {
    SetMac {
        request,
        uid: uid(1),
        vlan: vlan(1),
        from: mac(1),
        to: mac(50),
        addresses: vec!["10.0.1.17".parse().unwrap()],
    }
}

fn result(request: u64, outcome: MacOutcome) -> FromAgent {
    FromAgent::MacResult { request, vlan: vlan(1), outcome }
}

fn results(bench: &Bench) -> Vec<&FromAgent> {
    bench.sent.iter().filter(|m| matches!(m, FromAgent::MacResult { .. })).collect()
}

#[test]
fn a_mac_is_set_on_the_coordinators_word_and_answered_once() {
    let mut bench = Bench::running();
    bench.actions.clear();
    bench.told(ToAgent::SetMac(set_mac(4)));
    bench.told(ToAgent::SetMac(set_mac(4)));
    let wanted = Action::SetMac { origin: origin(), set: set_mac(4), trunk: mac(200) };
    assert_eq!(bench.actions, [wanted], "the repeated request is the one under way");
    for _ in 0..2 {
        let outcome = MacOutcome::Done;
        bench.see(Sighting::MacSet { origin: origin(), request: 4, outcome });
    }
    assert_eq!(results(&bench), [&result(4, MacOutcome::Done)]);
    assert!(bench.actions.contains(&Action::LookNow), "the coordinator is told of the link soon");
    bench.actions.clear();
    bench.told(ToAgent::SetMac(set_mac(4)));
    assert_eq!(bench.actions.len(), 1, "after the answer it may be asked again");
}

#[test]
fn no_annotation_and_no_change_of_the_books_sets_a_mac() {
    let mut bench = Bench::running();
    bench.actions.clear();
    let annotation = r#"[{"eniId":"eni-00000001","ifAddress":"02:00:00:00:00:32","privateIp":"10.0.1.17","ipv6Addr":"","vlanId":1,"subnetCidr":"10.0.1.0/24","subnetV6Cidr":"","associationID":"trunk-assoc-1"}]"#;
    bench.see(Sighting::PodApplied(Pod { annotation: Some(annotation.into()), ..pod(1) }));
    bench.told(ToAgent::OwnedAll(vec![OwnedBranch { mac: mac(50), ..owned(1) }]));
    bench.look();
    assert!(!bench.actions.iter().any(|a| matches!(a, Action::SetMac { .. })));
}

#[test]
fn s11_a_result_of_another_term_or_session_is_not_sent() {
    let mut bench = Bench::running();
    bench.told(ToAgent::SetMac(set_mac(4)));
    let next = Origin { epoch: Epoch(2), ..origin() };
    bench.see(Sighting::Disconnected);
    bench.see(Sighting::Connected(next.clone()));
    bench.told(ToAgent::SetMac(set_mac(4)));
    let done = |origin| Sighting::MacSet { origin, request: 4, outcome: MacOutcome::Done };
    bench.see(done(origin()));
    assert!(results(&bench).is_empty());
    bench.see(done(next));
    assert_eq!(results(&bench).len(), 1);

    // The same term, but a new stream that did not ask.
    bench.told(ToAgent::SetMac(set_mac(5)));
    let next = Origin { epoch: Epoch(2), ..origin() };
    bench.see(Sighting::Connected(next.clone()));
    bench.see(Sighting::MacSet { origin: next, request: 5, outcome: MacOutcome::Done });
    assert_eq!(results(&bench).len(), 1);
}

#[test]
fn without_a_trunk_no_mac_is_set() {
    let mut bench = Bench::running();
    bench.told(ToAgent::Trunk(None));
    bench.actions.clear();
    bench.told(ToAgent::SetMac(set_mac(4)));
    assert!(bench.actions.is_empty());
    assert!(matches!(
        results(&bench)[..],
        [FromAgent::MacResult { request: 4, outcome: MacOutcome::Failed(_), .. }]
    ));
}

#[test]
fn neighbours_are_dropped_on_the_coordinators_word() {
    let mut bench = Bench::running();
    bench.actions.clear();
    let addresses = vec!["10.0.1.17".parse().unwrap()];
    bench.told(ToAgent::ClearNeighbours { addresses: addresses.clone() });
    assert_eq!(bench.actions, [Action::ClearNeighbours(addresses)]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// A journal's moments may be of a clock that was reset, or nonsense: a use that lies ahead counts as one just now.
    #[test]
    fn any_journal_of_this_boot_is_taken_and_never_makes_a_vlan_look_rested(
        at in proptest::prelude::any::<u64>(),
        since in proptest::prelude::any::<u64>(),
        start in proptest::prelude::any::<u64>(),
        flags in proptest::prelude::any::<(bool, bool)>(),
    ) {
        let journal = Journal {
            boot: "boot".parse().unwrap(),
            seen: BTreeMap::from([(uid(1), KubeletStart(start))]),
            vlans: BTreeMap::from([(vlan(1), LastUse { at: Moment(at), present: flags.0 })]),
            since: Moment(since),
            whole: flags.1,
        };
        let mut bench = Bench::started(Some(journal));
        let began = bench.now;
        bench.connect();
        bench.list(&[pod(1)]);
        bench.told(ToAgent::OwnedAll(vec![owned(1)]));
        bench.see(Sighting::PodDeleted(pod(1).pod));
        bench.look_for(Duration::from_secs(60), Duration::from_secs(5));
        bench.see(Sighting::Resync);
        for message in &bench.sent {
            let FromAgent::VlansUsed(Some(used)) = message else { continue };
            let age = used[&vlan(1)];
            let ahead = flags.0 || at >= began.0;
            proptest::prop_assert!(!ahead || age <= bench.now.since(began), "{age:?}");
        }
    }
}
