use super::*;

use serde_json::{Value, json};

use crate::script::{Asked, Script, Store, scripted};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l";

struct Rig {
    script: Script,
    store: Store,
    leadership: watch::Receiver<Leadership>,
    release: CancellationToken,
    clock: Clock,
    task: tokio::task::JoinHandle<()>,
}

fn settings(identity: &str) -> LeaseSettings {
    let mut settings = LeaseSettings::new("kube-system", "l", identity.into());
    settings.address = Some("10.0.0.1:61790".into());
    settings
}

fn rig() -> Rig {
    let (api, script) = scripted();
    let clock = Clock::virtual_time();
    let (election, leadership) = Election::new(&api, clock, settings("us"));
    let release = CancellationToken::new();
    let task = tokio::spawn(election.run(release.clone()));
    Rig { script, store: Store::default(), leadership, release, clock, task }
}

/// A lease of somebody else, renewed for the `n`th time.
fn held_by(holder: &str, n: u32) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
           "metadata": {"name": "l", "namespace": "kube-system", "labels": {"keep": "me"}},
           "spec": {"holderIdentity": holder, "leaseDurationSeconds": 30, "leaseTransitions": 4,
                    "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": format!("2020-01-01T00:00:{n:02}.000000Z")}})
}

impl Rig {
    async fn next(&mut self) -> Asked {
        self.script.next().await
    }

    /// Answers requests until the leadership changes.
    async fn until_changed(&mut self) -> Leadership {
        loop {
            tokio::select! {
                biased;
                changed = self.leadership.changed() => {
                    changed.unwrap();
                    return self.leadership.borrow_and_update().clone();
                }
                asked = self.script.next() => self.store.answer(asked),
            }
        }
    }

    async fn until_leading(&mut self) -> Term {
        loop {
            if let Leadership::Leading(term) = self.until_changed().await {
                return term;
            }
        }
    }

    /// Answers requests for this long.
    async fn serve(&mut self, time: Duration) {
        let end = self.clock.now().plus(time);
        loop {
            tokio::select! {
                biased;
                () = self.clock.sleep_until(end) => return,
                asked = self.script.next() => self.store.answer(asked),
            }
        }
    }

    /// Answers requests for this long, each as late as this.
    async fn serve_slowly(&mut self, time: Duration, latency: Duration) {
        let end = self.clock.now().plus(time);
        loop {
            tokio::select! {
                biased;
                () = self.clock.sleep_until(end) => return,
                asked = self.script.next() => {
                    self.clock.sleep(latency).await;
                    self.store.answer(asked);
                }
            }
        }
    }

    fn holder(&self) -> Value {
        self.store.get(PATH).unwrap()["spec"]["holderIdentity"].clone()
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_lease_is_created_and_renewed() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    assert_eq!((term.number, term.transitions), (1, 0));
    let lease = rig.store.get(PATH).unwrap();
    assert_eq!(lease["metadata"]["annotations"][LEADER_ADDRESS], "10.0.0.1:61790");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    rig.serve(Duration::from_mins(10)).await;
    assert!(!term.deadline.expired(rig.clock.now()));
    assert!(rig.leadership.borrow().term().is_some());
    assert!(rig.store.writes > 250, "{} renewals in 600 s", rig.store.writes);
}

#[tokio::test(start_paused = true)]
async fn s70_a_slow_api_server_does_not_end_a_term_as_long_as_two_answers_fit_into_the_deadline() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    rig.serve_slowly(Duration::from_mins(10), Duration::from_millis(4_800)).await;
    assert!(!term.deadline.expired(rig.clock.now()));
    assert_eq!(rig.leadership.borrow().term().map(|now| now.number), Some(1));
    rig.serve_slowly(Duration::from_mins(1), Duration::from_millis(5_200)).await;
    assert!(term.deadline.expired(rig.clock.now()), "it gives up by itself where they do not fit");
}

#[tokio::test(start_paused = true)]
async fn the_age_of_anothers_lease_is_measured_here_and_by_its_own_duration() {
    let mut rig = rig();
    // Its times are of 2020; only what is seen here counts.
    rig.store.put(PATH, held_by("peer", 0));
    rig.serve(Duration::from_secs(29)).await;
    assert!(rig.leadership.borrow().term().is_none());
    rig.store.put(PATH, held_by("peer", 1));
    let renewed = rig.clock.now();
    let term = rig.until_leading().await;
    assert!(rig.clock.now().since(renewed) >= Duration::from_secs(30));
    assert_eq!(term.transitions, 5);
    let lease = rig.store.get(PATH).unwrap();
    assert_eq!(lease["metadata"]["labels"]["keep"], "me");
}

#[tokio::test(start_paused = true)]
async fn a_follower_knows_the_leader_only_if_the_leader_itself_wrote_its_address() {
    let mut rig = rig();
    let mut lease = held_by("other", 0);
    lease["metadata"]["annotations"] =
        json!({LEADER_ADDRESS: "10.0.0.2:61790", LEADER_HOLDER: "other"});
    rig.store.put(PATH, lease.clone());
    let Leadership::Following { leader_address } = rig.until_changed().await else {
        panic!("leading")
    };
    assert_eq!(leader_address.as_deref(), Some("10.0.0.2:61790"));
    // The peer takes over and keeps our annotations.
    lease["spec"]["holderIdentity"] = json!("peer");
    rig.store.put(PATH, lease);
    let Leadership::Following { leader_address } = rig.until_changed().await else {
        panic!("leading")
    };
    assert_eq!(leader_address, None);
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_on_one_expired_lease_only_one_leads() {
    let mut rig = rig();
    rig.store.put(PATH, held_by("dead", 0));
    // Serve until our PUT on the expired lease; let the other one be first.
    loop {
        let asked = rig.next().await;
        if asked.method == http::Method::PUT {
            rig.store.put(PATH, held_by("rival", 1));
            rig.store.answer(asked);
            break;
        }
        rig.store.answer(asked);
    }
    rig.serve(Duration::from_secs(20)).await;
    assert_eq!(rig.holder(), "rival");
    assert!(rig.leadership.borrow().term().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_last_successful_renewal_was_sent() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    // A renewal whose answer takes 4 s moves the deadline by its sending time.
    let asked = rig.next().await;
    let sent = rig.clock.now();
    tokio::time::sleep(Duration::from_secs(4)).await;
    rig.store.answer(asked);
    let hung = rig.next().await;
    assert_eq!(term.deadline.moment(), sent.plus(Duration::from_secs(10)));
    // Nothing is answered any more: the term ends exactly then.
    let Leadership::Following { .. } = rig.leadership_change().await else { panic!("leading") };
    assert_eq!(rig.clock.now(), sent.plus(Duration::from_secs(10)));
    assert!(term.deadline.expired(rig.clock.now()));
    drop(hung);
    // Still our lease: we may lead again, in a new term, and the old deadline stays ended.
    let second = rig.until_leading().await;
    assert_eq!(second.number, 2);
    assert!(term.deadline.expired(rig.clock.now()));
    assert!(!second.deadline.expired(rig.clock.now()));
}

impl Rig {
    /// The next change while nothing is answered.
    async fn leadership_change(&mut self) -> Leadership {
        let mut kept = Vec::new();
        loop {
            tokio::select! {
                biased;
                changed = self.leadership.changed() => {
                    changed.unwrap();
                    return self.leadership.borrow_and_update().clone();
                }
                asked = self.script.next() => kept.push(asked),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_was_executed_and_the_term_goes_on() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    for _ in 0..3 {
        let asked = rig.next().await;
        if asked.method == http::Method::PUT {
            rig.store.lose(asked);
        } else {
            rig.store.answer(asked);
        }
    }
    rig.serve(Duration::from_mins(1)).await;
    assert!(!term.deadline.expired(rig.clock.now()));
    assert_eq!(rig.holder(), "us");
}

#[tokio::test(start_paused = true)]
async fn the_term_ends_at_once_when_another_holds_the_lease() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    rig.store.put(PATH, held_by("rival", 1));
    assert!(matches!(rig.until_changed().await, Leadership::Following { .. }));
    assert!(term.deadline.expired(rig.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_vanishes_ends_the_term_and_a_new_one_may_begin() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    rig.store.remove(PATH);
    assert!(matches!(rig.until_changed().await, Leadership::Following { .. }));
    assert!(term.deadline.expired(rig.clock.now()));
    assert_eq!(rig.until_leading().await.number, 2);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_can_be_taken_at_once() {
    let mut rig = rig();
    let term = rig.until_leading().await;
    rig.release.cancel();
    loop {
        tokio::select! {
            biased;
            ended = &mut rig.task => break ended.unwrap(),
            asked = rig.script.next() => rig.store.answer(asked),
        }
    }
    assert!(term.deadline.expired(rig.clock.now()));
    let lease = rig.store.get(PATH).unwrap().clone();
    assert_eq!(lease["spec"]["holderIdentity"], json!(null));
    assert_eq!(lease["metadata"]["annotations"].get(LEADER_ADDRESS), None);

    let mut next = self::rig();
    next.store.put(PATH, lease);
    let start = next.clock.now();
    assert_eq!(next.until_leading().await.transitions, 1);
    assert!(next.clock.now().since(start) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_follower_leaves_the_lease_alone_when_it_stops() {
    let mut rig = rig();
    rig.store.put(PATH, held_by("other", 0));
    rig.serve(Duration::from_secs(5)).await;
    let writes = rig.store.writes;
    rig.release.cancel();
    rig.task.await.unwrap();
    assert_eq!(rig.store.writes, writes);
}

#[test]
fn durations_that_cannot_work_are_named() {
    let good = settings("us");
    assert_eq!(good.problem(), None);
    assert!(
        LeaseSettings { lease_duration: good.renew_deadline, ..good.clone() }.problem().is_some()
    );
    assert!(
        LeaseSettings { retry_period: Duration::from_secs(9), ..good.clone() }.problem().is_some()
    );
    assert!(LeaseSettings { retry_period: Duration::ZERO, ..good }.problem().is_some());
    assert_ne!(identity("u"), identity("u"));
}
