use super::*;

#[tokio::test(start_paused = true)]
async fn the_first_list_is_a_consistent_read_of_one_page_and_the_watch_asks_for_bookmarks() {
    let mut rig = rig();
    let asked = rig.list().await;
    assert_eq!(asked.path, "/api/v1/pods");
    assert_eq!(asked.query, ["fieldSelector=spec.nodeName%3Dn1"]);
    asked.json(200, &list(&[], "10"));
    assert!(rig.listed().await.is_empty());
    let asked = rig.watch().await;
    assert!(asked.asks("allowWatchBookmarks=true") && asked.asks("resourceVersion=10"));
    let timeout = asked.query.iter().find_map(|q| q.strip_prefix("timeoutSeconds=")).unwrap();
    assert!((240..=294).contains(&timeout.parse::<u32>().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn an_open_and_silent_watch_goes_stale_after_90_s_and_is_listed_again() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "10").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    watch.line(&bookmark("20"));
    assert_eq!(rig.event().await, PodsEvent::Bookmark(ResourceVersion::new("20").unwrap()));
    let signed = rig.clock.now();
    assert_eq!(rig.stale().await, Blind::Stale);
    let silent = rig.clock.now().since(signed);
    assert!(silent >= Duration::from_secs(90) && silent < Duration::from_secs(91), "{silent:?}");
    let asked = rig.list().await;
    assert!(watch.is_closed());
    assert!(asked.asks("resourceVersion=20") && asked.asks("resourceVersionMatch=NotOlderThan"));
    asked.json(200, &list(&["a"], "20"));
    assert_eq!(rig.listed().await, ["a"]);
    assert_eq!(rig.troubles(Trouble::Silent), 1);
}

#[tokio::test(start_paused = true)]
async fn hung_headers_and_hung_lists_time_out() {
    let mut rig = rig();
    let start = rig.clock.now();
    let hung = rig.list().await;
    let again = rig.list().await;
    assert!(rig.clock.now().since(start) <= Duration::from_secs(11));
    drop(hung);
    let stuck = again.stream(200);
    stuck.raw("{\"kind\":");
    let again = rig.list().await;
    drop(stuck);
    again.json(200, &list(&["a"], "10"));
    assert_eq!(rig.stale().await, Blind::ReadFailed);
    assert_eq!(rig.listed().await, ["a"]);
    // A watch whose headers never come is asked again, and the view goes stale all the same.
    let listed = rig.clock.now();
    let mut hung = Vec::new();
    loop {
        tokio::select! {
            asked = rig.script.next() => hung.push(asked),
            event = rig.events.recv() => break assert_eq!(event, Some(PodsEvent::Stale(Blind::Stale))),
        }
    }
    assert!(rig.clock.now().since(listed) < Duration::from_secs(91));
    assert!(hung.len() > 1 && hung.iter().all(|asked| asked.asks("watch=true")));
}

#[tokio::test(start_paused = true)]
async fn a_contradicted_view_is_stale_at_once_and_read_consistently() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "10").await;
    rig.relist.contradicted();
    assert_eq!(rig.stale().await, Blind::Stale);
    let asked = rig.list().await;
    assert_eq!(asked.query, ["fieldSelector=spec.nodeName%3Dn1"], "a cache may repeat its mistake");
    assert!(watch.is_closed());
    asked.json(200, &list(&["a", "b"], "12"));
    assert_eq!(rig.listed().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_during_a_list_leads_to_another_list() {
    let mut rig = rig();
    let asked = rig.list().await;
    rig.relist.contradicted();
    asked.json(200, &list(&["a"], "10"));
    rig.listed().await;
    assert_eq!(rig.stale().await, Blind::Stale);
    // The watch may have been asked for before the request was seen.
    let mut asked = rig.script.next().await;
    if asked.asks("watch=true") {
        asked = rig.list().await;
    }
    asked.json(200, &list(&["a", "b"], "11"));
    assert_eq!(rig.listed().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_versions_went_back_begins_a_new_epoch_after_30_s_of_too_large() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "1000").await;
    drop(watch);
    let start = rig.clock.now();
    let mut reached = false;
    while !reached {
        let asked = rig.script.next().await;
        if asked.asks("watch=true") {
            // A watch from the future: 200 and nothing.
            let _open = asked.stream(200);
            continue;
        }
        if asked.asks("resourceVersionMatch=NotOlderThan") {
            let details =
                json!({"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1});
            asked.status(504, "Timeout", &details);
        } else {
            assert!(rig.clock.now().since(start) > Duration::from_secs(30));
            asked.json(200, &list(&["a"], "7"));
            reached = true;
        }
    }
    loop {
        match rig.event().await {
            PodsEvent::Listed(snapshot) => {
                assert_eq!(snapshot.rv().unwrap().as_str(), "7");
                break;
            }
            PodsEvent::Stale(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(rig.watch().await.asks("resourceVersion=7"));
    assert_eq!(rig.troubles(Trouble::NewEpoch), 1);
}

#[tokio::test(start_paused = true)]
async fn a_504_for_another_reason_never_begins_a_new_epoch() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "1000").await;
    rig.relist.contradicted();
    drop(watch);
    for _ in 0..30 {
        rig.list().await.status(504, "Timeout", &json!({}));
    }
    rig.list().await.json(200, &list(&["a"], "7"));
    rig.list().await.json(200, &list(&["a"], "1001"));
    assert_eq!(rig.troubles(Trouble::NewEpoch), 0);
    assert_eq!(rig.troubles(Trouble::ListRejected), 1);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_does_not_read_is_waited_for_and_its_view_is_stale_when_it_was_too_long() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "10").await;
    for n in 0..200 {
        watch.line(&event("MODIFIED", pod("a", &(11 + n).to_string())));
    }
    tokio::time::sleep(Duration::from_mins(5)).await;
    let mut applied = 0;
    loop {
        match rig.event().await {
            PodsEvent::Applied(..) => applied += 1,
            PodsEvent::Stale(why) => break assert_eq!(why, Blind::Stale),
            other => panic!("{other:?}"),
        }
    }
    assert!((64..100).contains(&applied), "{applied} events");
    rig.list().await.json(200, &list(&["a"], "300"));
    assert_eq!(rig.listed().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_the_consumer_goes_away() {
    let Rig { mut script, events, task, .. } = rig();
    let asked = script.next().await;
    drop(events);
    task.await.unwrap();
    drop(asked);
    assert!(script.is_quiet());
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
struct Node {
    metadata: NodeMeta,
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
struct NodeMeta {
    name: String,
}

#[tokio::test(start_paused = true)]
async fn any_kind_can_be_watched_with_a_struct_of_the_consumer() {
    let (api, mut script) = scripted();
    let resource = cluster_objects::<Node>("nodes", "/api/v1/nodes", "Node");
    let settings = Settings::new(Duration::from_secs(90));
    let watch =
        ListWatch::new(api, resource, Clock::virtual_time(), settings, ListWatchMetrics::default());
    let (sender, mut events) = mpsc::channel(4);
    tokio::spawn(watch.run(sender, std::convert::identity));
    let node = |name: &str| json!({"metadata": {"name": name, "resourceVersion": "6"}});
    let asked = script.next().await;
    assert_eq!(
        (asked.path.as_str(), asked.query.as_slice()),
        ("/api/v1/nodes", &[String::new()][..])
    );
    asked.json(
        200,
        &json!({"kind": "NodeList", "metadata": {"resourceVersion": "5"}, "items": [node("n1")]}),
    );
    let n = |name: &str| Node { metadata: NodeMeta { name: name.into() } };
    let rv = |text: &str| ResourceVersion::new(text).unwrap();
    assert_eq!(events.recv().await, Some(Event::Listed(vec![n("n1")], rv("5"))));
    let stream = script.next().await.stream(200);
    let mut object = node("n2");
    object["kind"] = json!("Node");
    stream.line(&json!({"type": "ADDED", "object": object}));
    assert_eq!(events.recv().await, Some(Event::Applied(n("n2"), rv("6"))));
}
