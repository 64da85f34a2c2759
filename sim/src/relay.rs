//! A way between two programs that can be cut, frozen or made slow: partitions between agents and a coordinator.
//!
//! Plain TCP, so whatever TLS runs inside stays as it is. A frozen relay keeps its connections open and passes nothing
//! on, as a partition without RST does; what came meanwhile is passed on when it thaws, as TCP's repeats would do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// What the relay does with bytes and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Pass,
    /// Connections break and new ones are closed at once.
    Cut,
    /// Connections stay open, or are accepted, and nothing passes.
    Freeze,
    /// Everything arrives this much later, in both directions.
    Late(Duration),
}

/// A running relay; ends when dropped.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    mode: watch::Sender<Mode>,
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    /// Listens on a free port of loopback and passes connections on to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let (mode, modes) = watch::channel(Mode::Pass);
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, target, modes)));
        Ok(Self { addr, mode, _accepting: accepting })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes what it does, for open connections too.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, modes: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let cut = *modes.borrow() == Mode::Cut;
                    // When cut, it is closed at once.
                    if !cut {
                        connections.spawn(serve(stream, target, modes.clone()));
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(client: TcpStream, target: SocketAddr, mut modes: watch::Receiver<Mode>) {
    let cut = modes.clone();
    // The sender lives as long as the relay; without it there is nothing to serve.
    if modes.wait_for(|mode| *mode != Mode::Freeze).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        let _best_effort = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, modes.clone()) => {}
        () = pass(from_server, to_client, modes) => {}
        () = until_cut(cut) => {}
    }
}

async fn until_cut(mut modes: watch::Receiver<Mode>) {
    let _cut_or_ended = modes.wait_for(|mode| *mode == Mode::Cut).await;
}

/// Passes one direction on until either end closes.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
) {
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let seen = modes.clone();
    let reading = async move {
        let mut buffer = vec![0_u8; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let delay = match *seen.borrow() {
                Mode::Late(delay) => delay,
                Mode::Pass | Mode::Cut | Mode::Freeze => Duration::ZERO,
            };
            let chunk = buffer.get(..count).unwrap_or_default().to_vec();
            if queue.send((Instant::now() + delay, chunk)).is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, chunk)) = queued.recv().await {
            tokio::time::sleep_until(due).await;
            let thawed = modes.wait_for(|mode| *mode != Mode::Freeze).await.is_ok();
            if !thawed || to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}
