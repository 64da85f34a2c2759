//! The relay between agents and coordinators: what passes, what waits, what breaks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use trunkline_sim::relay::{Mode, Relay};

/// A server that answers each byte with the next one.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_u8(byte + 1).await.unwrap();
                }
            });
        }
    });
    addr
}

async fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
    stream.write_u8(byte).await?;
    stream.read_u8().await
}

#[tokio::test]
async fn bytes_pass_freeze_thaw_and_break() {
    let relay = Relay::start(echo().await).await.unwrap();
    let mut stream = TcpStream::connect(relay.addr()).await.unwrap();
    assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
    relay.set(Mode::Freeze);
    let nothing = tokio::time::timeout(Duration::from_millis(200), ask(&mut stream, 3)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    relay.set(Mode::Pass);
    assert_eq!(stream.read_u8().await.unwrap(), 4, "what was held back arrives");
    relay.set(Mode::Cut);
    assert!(ask(&mut stream, 5).await.is_err());
    let refused = TcpStream::connect(relay.addr()).await.unwrap().read_u8().await;
    assert!(refused.is_err());
    relay.set(Mode::Late(Duration::from_millis(150)));
    let mut stream = TcpStream::connect(relay.addr()).await.unwrap();
    let begun = Instant::now();
    assert_eq!(ask(&mut stream, 7).await.unwrap(), 8);
    assert!(begun.elapsed() >= Duration::from_millis(300));
}
