use super::*;
use crate::script::status;

/// Each of these answers must leave the list open and be asked again.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_whole_is_never_accepted() {
    let mut other_node = list(&["a"], "10");
    other_node["items"][0]["spec"]["nodeName"] = json!("n2");
    let mut no_node = list(&["a"], "10");
    no_node["items"][0]["spec"] = json!({});
    let mut undecodable = list(&["a", "b"], "10");
    undecodable["items"][1]["metadata"]["uid"] = json!(7);
    let mut bad_uid = list(&["a"], "10");
    bad_uid["items"][0]["metadata"]["uid"] = json!("");
    let mut null_items = list(&[], "10");
    null_items["items"] = json!(null);
    let mut no_items = list(&[], "10");
    no_items.as_object_mut().unwrap().remove("items");
    let mut paged = list(&["a"], "10");
    paged["metadata"]["continue"] = json!("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ");
    let mut remaining = list(&["a"], "10");
    remaining["metadata"]["remainingItemCount"] = json!(88);
    let mut other_kind = list(&["a"], "10");
    other_kind["kind"] = json!("NodeList");
    let mut no_rv = list(&["a"], "10");
    no_rv["metadata"] = json!({});

    let bad = [
        other_node,
        no_node,
        undecodable,
        bad_uid,
        null_items,
        no_items,
        paged,
        remaining,
        other_kind,
        no_rv,
        list(&["a"], "0"),
        list(&["a"], "007"),
        json!(null),
        status(410, "Expired", &json!({})),
    ];
    let mut rig = rig();
    let count = bad.len();
    for answer in bad {
        rig.list().await.json(200, &answer);
    }
    rig.list().await.json(200, &list(&["a"], "10"));
    assert_eq!(rig.stale().await, Blind::ReadFailed, "told once, not once per attempt");
    assert_eq!(rig.listed().await, ["a"]);
    assert_eq!(rig.troubles(Trouble::ListRejected), count as u64);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_asked_again() {
    let mut rig = rig();
    rig.list().await.text(200, "");
    rig.list().await.text(200, "<html>welcome to the proxy</html>");
    rig.list().await.text(500, "internal error");
    rig.list().await.text(404, "not found");
    rig.list().await.status(429, "TooManyRequests", &json!({"retryAfterSeconds": 3}));
    rig.list().await.status(403, "Forbidden", &json!({"kind": "pods"}));
    rig.list().await.text(204, "");
    drop(rig.list().await);
    let cut_off = rig.list().await.stream(200);
    cut_off.raw(&list(&["a"], "10").to_string()[..60]);
    cut_off.reset();
    let truncated = rig.list().await.stream(200);
    truncated.raw(&list(&["a"], "10").to_string()[..60]);
    drop(truncated);
    rig.list().await.json(200, &list(&["a"], "10"));
    assert_eq!(rig.stale().await, Blind::ReadFailed);
    assert_eq!(rig.listed().await, ["a"]);
}

/// amazon-vpc-resource-controller-k8s issue 412: the part that had arrived was taken for the whole.
#[tokio::test(start_paused = true)]
async fn s01_a_410_in_mid_list_never_shows_a_part_of_the_list() {
    let mut rig = rig();
    let watch = rig.complete(&["a", "b", "c"], "10").await;
    watch.line(&json!({"type": "ERROR", "object": status(410, "Expired", &json!({}))}));
    assert_eq!(rig.stale().await, Blind::Stale);
    let mut page = list(&["a"], "12");
    page["metadata"]["continue"] = json!("token");
    for _ in 0..3 {
        let asked = rig.list().await;
        assert!(
            !asked.query.iter().any(|q| q.starts_with("continue=") || q.starts_with("limit=")),
            "{:?}",
            asked.query
        );
        asked.json(200, &page);
        let mut expired = status(410, "Expired", &json!({}));
        expired["metadata"] = json!({"continue": "eyJydiI6LTF9"});
        rig.list().await.json(410, &expired);
    }
    rig.list().await.json(200, &list(&["a", "b", "c"], "13"));
    assert_eq!(rig.stale().await, Blind::ReadFailed);
    assert_eq!(rig.listed().await, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_complete_looking_list_that_is_older_than_the_view_is_rejected() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "10").await;
    watch.line(&bookmark("20"));
    assert!(matches!(rig.event().await, PodsEvent::Bookmark(_)));
    rig.relist.contradicted();
    assert_eq!(rig.stale().await, Blind::Stale);
    rig.list().await.json(200, &list(&[], "15"));
    rig.list().await.json(200, &list(&["a"], "100"));
    assert_eq!(rig.stale().await, Blind::ReadFailed);
    assert_eq!(rig.listed().await, ["a"]);
    assert_eq!(rig.troubles(Trouble::ListRejected), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_does_not_decode_ends_the_view_and_is_never_skipped() {
    let mut other_node = event("ADDED", pod("x", "11"));
    other_node["object"]["spec"]["nodeName"] = json!("n2");
    let mut no_rv = event("ADDED", pod("x", "11"));
    no_rv["object"]["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let mut other_kind = event("ADDED", pod("x", "11"));
    other_kind["object"]["kind"] = json!("Node");
    let mut bad_uid = event("DELETED", pod("x", "11"));
    bad_uid["object"]["metadata"]["uid"] = json!({});
    let bad = [
        other_node,
        no_rv,
        other_kind,
        bad_uid,
        event("RENAMED", pod("x", "11")),
        json!({"no": "event"}),
        json!(7),
    ];
    let mut rig = rig();
    let count = bad.len();
    for line in bad {
        let watch = rig.complete(&["a"], "10").await;
        watch.line(&line);
        // What follows in the same stream must not be believed either.
        watch.line(&event("ADDED", pod("b", "12")));
        assert_eq!(rig.stale().await, Blind::ReadFailed);
    }
    rig.list().await.json(200, &list(&["a", "b", "x"], "12"));
    assert_eq!(rig.listed().await, ["a", "b", "x"]);
    assert_eq!(rig.troubles(Trouble::Undecodable), count as u64);
}

#[tokio::test(start_paused = true)]
async fn an_event_or_bookmark_that_goes_back_ends_the_view() {
    for line in [bookmark("9"), event("MODIFIED", pod("a", "8"))] {
        let mut rig = rig();
        let watch = rig.complete(&["a"], "10").await;
        watch.line(&line);
        assert_eq!(rig.stale().await, Blind::Stale);
        let asked = rig.list().await;
        assert!(
            asked.asks("resourceVersion=10") && asked.asks("resourceVersionMatch=NotOlderThan"),
            "{:?}",
            asked.query
        );
        assert_eq!(rig.troubles(Trouble::WentBack), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn any_410_to_a_watch_makes_it_list_again() {
    let mut rig = rig();
    rig.list().await.json(200, &list(&["a"], "10"));
    rig.listed().await;
    rig.watch().await.text(410, "Gone");
    assert_eq!(rig.stale().await, Blind::Stale);
    let watch = rig.complete(&["a"], "11").await;
    watch.line(&json!({"type": "ERROR", "object": status(410, "Expired", &json!({}))}));
    assert_eq!(rig.stale().await, Blind::Stale);
    rig.list().await.json(200, &list(&["a"], "12"));
    rig.listed().await;
    assert_eq!(rig.troubles(Trouble::Expired), 2);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_off_is_resumed_where_it_ended() {
    let mut rig = rig();
    let watch = rig.complete(&["a"], "10").await;
    watch.line(&event("ADDED", pod("b", "11")));
    assert!(matches!(rig.event().await, PodsEvent::Applied(_, rv) if rv.as_str() == "11"));
    // Reset in mid-event.
    watch.raw(&event("ADDED", pod("c", "12")).to_string()[..40]);
    watch.reset();
    let asked = rig.watch().await;
    assert!(asked.asks("resourceVersion=11"), "{:?}", asked.query);
    // The last line is cut off.
    let watch = asked.stream(200);
    watch.raw(&event("ADDED", pod("c", "12")).to_string());
    drop(watch);
    let asked = rig.watch().await;
    assert!(asked.asks("resourceVersion=11"), "{:?}", asked.query);
    // An error other than 410, as an event and as an answer.
    let watch = asked.stream(200);
    watch.line(&json!({"type": "ERROR", "object": status(500, "InternalError", &json!({}))}));
    rig.watch().await.status(429, "TooManyRequests", &json!({"retryAfterSeconds": 1}));
    drop(rig.watch().await);
    let watch = rig.watch().await.stream(200);
    // One event in two pieces, then two events in one.
    let line = format!("{}\n", event("ADDED", pod("c", "12")));
    watch.raw(&line[..30]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    watch.raw(&format!("{}{}\n", &line[30..], event("DELETED", pod("b", "13"))));
    assert!(matches!(rig.event().await, PodsEvent::Applied(pod, _) if pod.pod.uid.as_str() == "c"));
    assert!(matches!(rig.event().await, PodsEvent::Deleted(pod, _) if pod.uid.as_str() == "b"));
}

#[tokio::test(start_paused = true)]
async fn watches_that_close_at_once_are_paced_and_lists_do_not_reset_the_pace() {
    let mut rig = rig();
    let start = rig.clock.now();
    rig.list().await.json(200, &list(&["a"], "10"));
    rig.listed().await;
    let mut asked = 0;
    while rig.clock.now().since(start) < Duration::from_mins(10) {
        // Bodies that end at once for watches, accepted lists in between.
        let request = rig.script.next().await;
        asked += 1;
        if request.asks("watch=true") {
            drop(request.stream(200));
        } else {
            request.json(200, &list(&["a"], "10"));
        }
        while rig.events.try_recv().is_ok() {}
    }
    assert!(asked < 200, "{asked} requests in ten minutes");
}
