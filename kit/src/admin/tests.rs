use super::*;

use http_body_util::BodyExt;
use prometheus_client::metrics::counter::Counter;
use tower::ServiceExt;

async fn ask(admin: &Admin, path: &str, peer: &str) -> (StatusCode, String) {
    let mut request = axum::http::Request::get(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
    let response = admin.clone().router().oneshot(request).await.unwrap();
    let code = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

const LOCAL: &str = "[::ffff:127.0.0.1]:1";

#[tokio::test]
async fn readyz_names_what_is_awaited() {
    let readiness = Readiness::new();
    let pods = readiness.register("pods");
    pods.set_unready("the pods were not listed yet");
    let admin = Admin::new(readiness.clone());
    let (code, text) = ask(&admin, "/readyz", LOCAL).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("[-]pods failed: the pods were not listed yet"), "{text}");
    pods.set_ready();
    assert_eq!(ask(&admin, "/readyz", LOCAL).await, (StatusCode::OK, "ok".into()));
    let (_, text) = ask(&admin, "/readyz?verbose", LOCAL).await;
    assert_eq!(text, "[+]pods ok\nreadyz check passed\n");
}

#[tokio::test(start_paused = true)]
async fn health_checks_can_be_asked_one_by_one_and_time_out() {
    let admin = Admin::new(Readiness::new())
        .check("health-root-manager-ping", || async { Ok(()) })
        .check("health-stuck", std::future::pending);
    assert_eq!(
        ask(&admin, "/healthz/health-root-manager-ping", LOCAL).await,
        (StatusCode::OK, "ok".into())
    );
    let (code, text) = ask(&admin, "/healthz?verbose", LOCAL).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        text.contains(
            "[+]health-root-manager-ping ok\n[-]health-stuck failed: no answer within 28s"
        ),
        "{text}"
    );
    assert_eq!(ask(&admin, "/healthz/nope", LOCAL).await.0, StatusCode::NOT_FOUND);
    assert_eq!(
        ask(&Admin::new(Readiness::new()), "/livez", LOCAL).await,
        (StatusCode::OK, "ok".into())
    );
}

#[tokio::test]
async fn the_status_is_shown_on_loopback_only_unless_told_otherwise() {
    let provider = || async { serde_json::json!({"pods": 3}) };
    let admin = Admin::new(Readiness::new()).status(false, provider);
    assert_eq!(ask(&admin, "/status", LOCAL).await, (StatusCode::OK, r#"{"pods":3}"#.into()));
    assert_eq!(ask(&admin, "/status", "10.0.0.9:1").await.0, StatusCode::FORBIDDEN);
    let open = Admin::new(Readiness::new()).status(true, provider);
    assert_eq!(ask(&open, "/status", "10.0.0.9:1").await.0, StatusCode::OK);
    assert_eq!(ask(&Admin::new(Readiness::new()), "/status", LOCAL).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_are_shown_over_a_real_socket_until_the_stop() {
    let mut registry = Registry::default();
    let counter = Counter::<u64>::default();
    registry.register("trunkline_tests", "Tests", counter.clone());
    counter.inc();
    let server = AdminServer::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let admin = Admin::new(Readiness::new()).metrics(Arc::new(registry));
    let running = tokio::spawn(server.run(admin, stop.clone()));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
    assert!(text.contains("trunkline_tests_total 1"), "{text}");
    stop.cancel();
    running.await.unwrap().unwrap();
}
