//! The binary: bad settings, readiness with reasons, an end by signal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::Node;
use trunkline_kit::clock::Clock;

const BINARY: &str = env!("CARGO_BIN_EXE_trunkline-agent");

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command() -> Command {
    let mut command = Command::new(BINARY);
    command.env_clear();
    command
}

fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let code = text.split(' ').nth(1).unwrap().parse().unwrap();
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (code, body)
}

#[test]
fn bad_settings_are_told_together_and_end_with_64() {
    let output = command().args(["--node-name=X_", "-health-bind", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(output.stderr).unwrap();
    for flag in
        ["node-name", "health-bind", "coordinator", "coordinator-ca", "token-file", "pod-uid"]
    {
        assert!(text.contains(&format!("--{flag}")), "{flag} in {text}");
    }
    let version = command().arg("--version").output().unwrap();
    assert!(version.status.success());
    assert!(String::from_utf8(version.stdout).unwrap().starts_with("trunkline-agent 0."));
}

#[test]
fn without_api_server_and_coordinator_it_lives_is_not_ready_and_says_why() {
    let node = Node::new();
    std::fs::write(node.path("token"), "t").unwrap();
    std::fs::write(
        node.path("kubeconfig"),
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
    )
    .unwrap();
    let file = |flag: &str, name: &str| format!("--{flag}={}", node.path(name).display());
    let child = command()
        .args([
            "--node-name=n1",
            "--coordinator=https://127.0.0.1:1",
            "--health-bind=127.0.0.1:0",
            "--pod-uid=11111111-1111-4111-8111-111111111111",
            "--log-format=json",
        ])
        .args([
            file("coordinator-ca", "no-ca.crt"),
            file("token-file", "token"),
            file("kubeconfig", "kubeconfig"),
            file("cgroup-root", "cgroup"),
            file("kubelet-socket", "kubelet.sock"),
            file("boot-id-file", "boot_id"),
            file("state-dir", "state"),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    let mut log = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let health = log
        .find_map(|line| {
            let line = line.unwrap();
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            value.get("health").map(|h| h.as_str().unwrap().to_owned())
        })
        .unwrap();
    let reader = std::thread::spawn(move || log.map(Result::unwrap).count());

    assert_eq!(get(&health, "/livez").0, 200);
    let clock = Clock::boot();
    let deadline = clock.now().plus(common::LIMIT);
    let ready = loop {
        let (code, body) = get(&health, "/readyz?verbose");
        assert_eq!(code, 503, "{body}");
        let done = ["[-]pods", "[-]cgroups", "[+]links", "[+]kubelet", "[-]session"]
            .iter()
            .all(|check| body.contains(check));
        if done && body.contains("cgroupsPerQOS") && body.contains("last read failed") {
            break body;
        }
        assert!(clock.now() < deadline, "{body}");
        std::thread::yield_now();
    };
    assert!(ready.contains("CA file"), "{ready}");
    let (code, metrics) = get(&health, "/metrics");
    assert_eq!(code, 200);
    assert!(metrics.contains("trunkline_agent_view_valid{view=\"kubelet\"} 1"), "{metrics}");
    assert!(metrics.contains("trunkline_agent_session_connected 0"));
    let status: serde_json::Value = serde_json::from_str(&get(&health, "/status").1).unwrap();
    assert_eq!(status["node"], "n1");
    assert_eq!(status["session"]["state"], "waiting");
    assert_eq!(status["cgroups"]["reason"], "own-pod-missing");

    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(process.0.wait().unwrap().code(), Some(0));
    assert!(reader.join().unwrap() > 0);
}
