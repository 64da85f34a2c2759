//! The loop against a scripted node and coordinator, in paused time.

mod healing;
mod world;

use std::collections::BTreeSet;

use trunkline_core::fact::Way;
use trunkline_core::id::EniId;
use trunkline_core::message::{Change, ToAgent};

use super::*;
use crate::session::OUTBOUND;

use world::*;

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_released_once_cgroup_and_link_are_gone() {
    let (world, mut sent) = World::settled(None).await;
    world.delete("a").await;
    seconds(30).await;
    assert!(releases(&mut sent).is_empty(), "the cgroup is there");
    world.scene(|s| s.cgroups = Ok([uid("own")].into()));
    seconds(30).await;
    assert!(releases(&mut sent).is_empty(), "the link is there");
    assert_eq!(world.status.borrow().cases[0].state, "link-remains");
    world.scene(|s| s.branch_link = false);
    seconds(2).await;
    assert_eq!(releases(&mut sent), [Way::SeenAndGone]);
    seconds(30).await;
    assert!(releases(&mut sent).len() >= 2, "repeated until it is deleted");
    world.told(ToAgent::Ack(uid("a"), trunkline_core::message::Ack::Deleted)).await;
    seconds(1).await;
    all(&mut sent);
    seconds(30).await;
    assert!(releases(&mut sent).is_empty());
    assert!(world.status.borrow().cases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s57_an_agent_that_was_away_goes_by_its_journal_or_slowly_without() {
    let (world, _sent) = World::settled(None).await;
    let journal = world.shelf.0.lock().unwrap().last().cloned().unwrap();
    assert_eq!(journal.seen.get(&uid("a")), Some(&KubeletStart(1)));

    for (journal, fast) in [(Some(journal), true), (None, false)] {
        let world = World::new(journal);
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.branch_link = false;
        });
        let mut sent = world.connect().await;
        world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
        world.pods.send(listed(&["own"])).await.unwrap();
        seconds(1).await;
        let suspects =
            |m: &FromAgent| matches!(m, FromAgent::Suspect(s) if s.pod().uid == uid("a"));
        assert!(all(&mut sent).iter().any(suspects));
        world.told(ToAgent::Gone(uid("a"))).await;
        seconds(60).await;
        assert_eq!(!releases(&mut sent).is_empty(), fast);
        seconds(300).await;
        let ways = releases(&mut sent);
        let expected = if fast { Way::SeenAndGone } else { Way::Slow };
        assert!(!ways.is_empty() && ways.iter().all(|way| *way == expected), "{ways:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_restart_withdraws_and_leaves_the_slow_way() {
    let (world, mut sent) = World::settled(None).await;
    world.scene(|s| {
        s.start = Some(2);
        s.cgroups = Ok([uid("own")].into());
        s.branch_link = false;
    });
    world.delete("a").await;
    seconds(200).await;
    assert!(releases(&mut sent).is_empty());
    seconds(150).await;
    let ways = releases(&mut sent);
    assert!(!ways.is_empty() && ways.iter().all(|way| *way == Way::Slow), "{ways:?}");
}

#[tokio::test(start_paused = true)]
async fn a_view_that_does_not_prove_itself_releases_nothing() {
    type Blinding = fn(&mut Scene);
    let blindings: [Blinding; 5] = [
        |s| s.cgroups = Ok(BTreeSet::new()),
        |s| s.cgroups = Err(Blind::ReadFailed),
        |s| s.start = None,
        |s| s.boot_fails = true,
        |s| s.hangs = true,
    ];
    for (n, blind) in blindings.into_iter().enumerate() {
        let (world, mut sent) = World::settled(None).await;
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.branch_link = false;
            blind(s);
        });
        seconds(20).await;
        world.delete("a").await;
        seconds(700).await;
        assert!(releases(&mut sent).is_empty(), "blinding {n}");
        let status = world.status.borrow().clone();
        assert!(["cgroups", "kubelet"].iter().any(|c| status.unready(c).is_some()), "{n}");
        drop(status);
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.start = Some(1);
            s.boot_fails = false;
            s.hangs = false;
        });
        seconds(30).await;
        assert!(!releases(&mut sent).is_empty(), "after blinding {n} it goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_while_a_look_hangs_and_say_that_nothing_is_seen() {
    let (world, mut sent) = World::settled(None).await;
    world.scene(|s| s.hangs = true);
    seconds(30).await;
    all(&mut sent);
    seconds(20).await;
    let beats: Vec<_> = all(&mut sent)
        .into_iter()
        .filter_map(|m| if let FromAgent::Heartbeat(beat) = m { Some(beat) } else { None })
        .collect();
    assert!(beats.len() >= 3);
    assert!(beats.iter().all(|b| b.kubelet.is_none() && b.cgroups == Some(Blind::ReadFailed)));
    assert!(world.pulse.silent() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_short_lived_pod_counts_as_seen_only_under_the_start_it_appeared_under() {
    for (stamp, fast) in [(1, true), (9, false)] {
        let (world, mut sent) = World::settled(None).await;
        world.scene(|s| s.branch_link = false);
        world.node.signs.seen([uid("short")], KubeletStart(stamp));
        seconds(1).await;
        let mut branch = owned("short");
        branch.eni = EniId::new("eni-0123456789abcdef1").unwrap();
        world.told(ToAgent::OwnedChanged { added: vec![branch], removed: vec![] }).await;
        world.told(ToAgent::Gone(uid("short"))).await;
        seconds(5).await;
        assert_eq!(!releases(&mut sent).is_empty(), fast, "stamp {stamp}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sign_leads_to_a_look_at_once_and_many_signs_to_few() {
    let (world, _sent) = World::settled(None).await;
    let count = || world.node.looks.lock().unwrap().len();
    let before = count();
    world.node.signs.changed();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count(), before + 1);
    for _ in 0..1000 {
        world.node.signs.changed();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(count() - before <= 13, "{} looks in a second", count() - before);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_is_answered_from_a_look_that_began_after_it() {
    let (world, mut sent) = World::settled(None).await;
    all(&mut sent);
    let uids = BTreeSet::from([uid("a")]);
    world.told(ToAgent::Barrier { question: 5, uids }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let reply = all(&mut sent).into_iter().find_map(|m| match m {
        FromAgent::Barrier(reply) => Some(reply),
        _ => None,
    });
    let reply = reply.unwrap();
    assert_eq!((reply.question, reply.start), (5, Some(KubeletStart(1))));
    assert_eq!(reply.present.get(&uid("a")), Some(&Some(true)));
}

#[tokio::test(start_paused = true)]
async fn views_are_sent_after_the_greeting_and_again_on_resync_then_as_changes() {
    let (world, mut sent) = World::settled(None).await;
    let whole = |messages: &[FromAgent]| {
        let has = |f: fn(&FromAgent) -> bool| messages.iter().any(f);
        has(|m| matches!(m, FromAgent::Pods(Ok(_))))
            && has(|m| matches!(m, FromAgent::Links(Ok(_))))
            && has(|m| matches!(m, FromAgent::Cgroups(Ok(_))))
            && has(|m| matches!(m, FromAgent::VlansUsed(_)))
    };
    assert!(whole(&all(&mut sent)));
    world.scene(|s| s.cgroups = Ok([uid("own"), uid("a"), uid("b")].into()));
    seconds(6).await;
    let changes = all(&mut sent);
    assert!(changes.iter().any(
        |m| matches!(m, FromAgent::Change(Change::Cgroups { added, .. }) if *added == [uid("b")].into())
    ));
    assert!(!changes.iter().any(|m| matches!(m, FromAgent::Cgroups(_))));
    world.session.send(SessionEvent::Resync).await.unwrap();
    seconds(1).await;
    assert!(whole(&all(&mut sent)));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_ends_the_session_and_the_next_one_begins_with_everything() {
    let (world, mut sent) = World::settled(None).await;
    for n in 0..=OUTBOUND {
        world.pods.send(PodsEvent::Applied(pod(&format!("p{n}")), rv())).await.unwrap();
    }
    seconds(1).await;
    while sent.recv().await.is_some() {}
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    let mut sent = world.connect().await;
    seconds(1).await;
    let pods = all(&mut sent).into_iter().find_map(|m| match m {
        FromAgent::Pods(Ok(pods)) => Some(pods),
        _ => None,
    });
    assert_eq!(pods.unwrap().pods().len(), OUTBOUND + 3);
}

#[tokio::test(start_paused = true)]
async fn s14_before_the_first_list_the_pods_are_unknown() {
    let world = World::new(None);
    let mut sent = world.connect().await;
    world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
    world.scene(|s| {
        s.cgroups = Ok([uid("own")].into());
        s.branch_link = false;
    });
    seconds(600).await;
    let messages = all(&mut sent);
    assert!(messages.iter().any(|m| matches!(m, FromAgent::Pods(Err(Blind::NotRead)))));
    assert!(!messages.iter().any(|m| matches!(m, FromAgent::Suspect(_) | FromAgent::Release(_))));
    assert!(world.status.borrow().unready("pods").is_some());
}

#[tokio::test(start_paused = true)]
async fn readiness_names_each_view_and_a_node_without_trunk_is_ready() {
    let (world, _sent) = World::settled(None).await;
    let checks = crate::status::CHECKS;
    let unready = |world: &World| {
        let status = world.status.borrow().clone();
        checks.into_iter().filter(|c| status.unready(c).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(unready(&world), [""; 0]);
    world.scene(|s| s.cgroups = Ok([uid("a")].into()));
    world.told(ToAgent::Trunk(Some(mac("02:00:00:00:00:99")))).await;
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups", "links"]);
    assert!(world.status.borrow().unready("cgroups").unwrap().contains("cgroupsPerQOS"));
    world.told(ToAgent::Trunk(None)).await;
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups"]);
    world.scene(|s| s.start = None);
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    world.session.send(SessionEvent::Waiting("refused: why".into())).await.unwrap();
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups", "kubelet", "session"]);
    assert_eq!(world.status.borrow().unready("session").as_deref(), Some("refused: why"));
}
