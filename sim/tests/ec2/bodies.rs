//! Injections 21 to 23: broken and strange replies.

use super::*;

#[tokio::test]
async fn bodies_can_be_cut_with_good_and_with_bad_framing() {
    let sim = Sim::plain().await;
    let whole = sim.ok("DescribeSubnets", &[]).await.body.len();
    let cut = |bad_framing| {
        Fault::on("DescribeSubnets", FaultKind::CutBody { percent: 50, bad_framing }).times(1)
    };
    sim.inject(cut(false)).await;
    let answer = sim.call("DescribeSubnets", &[]).await;
    assert_eq!((answer.status, answer.body.len()), (200, whole / 2));
    sim.inject(cut(true)).await;
    assert!(sim.client.query("AKIAME", "DescribeSubnets", &[]).await.is_err());
    sim.ok("DescribeSubnets", &[]).await;
}

#[tokio::test]
async fn bodies_can_be_something_else_altogether() {
    let sim = Sim::plain().await;
    let html = FaultKind::Body {
        status: 502,
        body: "<html>Bad Gateway</html>".into(),
        content_type: "text/html".into(),
    };
    sim.inject(Fault::on("DescribeSubnets", html).times(1)).await;
    let answer = sim.call("DescribeSubnets", &[]).await;
    assert_eq!((answer.status, answer.body.as_str()), (502, "<html>Bad Gateway</html>"));
    assert_eq!(answer.headers["content-type"], "text/html");
    let empty = FaultKind::Error { status: 500, code: String::new(), message: String::new() };
    sim.inject(Fault::on("DescribeSubnets", empty).times(1)).await;
    let answer = sim.call("DescribeSubnets", &[]).await;
    assert_eq!((answer.status, answer.body.as_str()), (500, ""));
    sim.client.set_switches(&serde_json::json!({"chunked": false})).await.unwrap();
    let answer = sim.ok("DescribeSubnets", &[]).await;
    assert_eq!(answer.headers["content-length"], answer.body.len().to_string());
}

#[tokio::test]
async fn elements_can_be_missing() {
    let sim = Sim::plain().await;
    let instance = sim.instance("m5.large").await;
    let by_id = [("InstanceId.1", instance.as_str())];
    for element in ["networkInterfaceSet", "subnetId", "instanceType", "interfaceType"] {
        assert!(sim.ok("DescribeInstances", &by_id).await.body.contains(element));
        let omit = FaultKind::Omit { elements: vec![element.into()] };
        sim.inject(Fault::on("DescribeInstances", omit).times(1)).await;
        let answer = sim.ok("DescribeInstances", &by_id).await;
        assert!(!answer.body.contains(&format!("<{element}")), "{element}");
    }
}

#[tokio::test]
async fn the_date_can_be_off() {
    let sim = Sim::plain().await;
    let truth = sim.ok("DescribeSubnets", &[]).await.headers["date"].clone();
    sim.always("DescribeSubnets", FaultKind::Date { offset_s: 10 * 366 * 86_400 }).await;
    let off = sim.ok("DescribeSubnets", &[]).await.headers["date"].clone();
    let year = |date: &str| date.split(' ').nth(3).unwrap().parse::<i32>().unwrap();
    assert_eq!(year(&off), year(&truth) + 10);
    assert_eq!(off.len(), truth.len());
}
