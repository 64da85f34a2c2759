//! The agent's way to the coordinators: messages of the wire contract, brought by the simulation instead of gRPC.
//!
//! As over one TCP connection: in order, none twice, none lost without the stream ending. What can happen is that it is
//! late, that it ends for one side and not for the other, and that the agent is back while the old stream still lives at
//! the coordinator's. gRPC, TLS and HTTP/2 flow control are not in here; queues are as short as there.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use trunkline_agent::port::{DialError, Dialer, Inbound, Target};
use trunkline_core::id::NodeName;
use trunkline_proto::v1;

use super::agent::TOKEN_LIFE;
use crate::simulation::weather::Place;
use crate::simulation::world::{Door, Life, World};

/// Messages on the wire in each direction.
const WIRE: usize = 16;

/// Dials.
pub struct SimDialer {
    /// The world.
    pub world: Arc<World>,
    /// The agent's node.
    pub node: NodeName,
    /// The agent's process.
    pub life: Arc<Life>,
}

impl Dialer for SimDialer {
    fn targets(&self) -> BoxFuture<'_, Result<Vec<Target>, DialError>> {
        let addresses: Vec<String> = self.world.doors().keys().cloned().collect();
        let target = |address| Target { address, server_name: "trunkline-coordinator".to_owned() };
        std::future::ready(Ok(addresses.into_iter().map(target).collect())).boxed()
    }

    fn open<'a>(
        &'a self,
        target: &'a Target,
        outbound: mpsc::Receiver<v1::AgentMessage>,
    ) -> BoxFuture<'a, Result<Inbound, DialError>> {
        async move {
            let world = &self.world;
            let door = world.doors().get(&target.address).cloned();
            let door = door.ok_or_else(|| DialError("no such host".into()))?;
            tokio::time::sleep(world.dice.ms(1..10)).await;
            if door.life.is_over() {
                return Err(DialError("connection refused".into()));
            }
            let here = Place::Node(self.node.clone());
            if world.is_cut(&here, &door.life.place) {
                tokio::time::sleep(Duration::from_secs(10)).await;
                return Err(DialError("no route".into()));
            }
            let token = self.token()?;
            Ok(Box::pin(connect(world, &self.life, here, door, token, outbound)) as Inbound)
        }
        .boxed()
    }

    fn token(&self) -> Result<String, DialError> {
        let (own_pod, node) = (self.world.machine(&self.node, |m| m.own_pod.clone()), &self.node);
        // Renewed as the kubelet does it: at four fifths of its life.
        let life = i64::try_from(TOKEN_LIFE.as_secs()).unwrap_or_default();
        let now = self.world.clock.unix_seconds();
        let issued = now - now.rem_euclid(life * 4 / 5);
        let claims = json!({
            "exp": issued + life,
            "node-name": node.as_str(),
            "node-uid": format!("uid-of-{node}"),
            "pod-name": format!("agent-{node}"),
            "pod-uid": own_pod.map(|uid| uid.to_string()),
        });
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims.to_string());
        Ok(format!("head.{claims}.sign"))
    }
}

/// One connection: a pump for each direction.
fn connect(
    world: &Arc<World>,
    agent: &Arc<Life>,
    here: Place,
    door: Door,
    token: String,
    mut outbound: mpsc::Receiver<v1::AgentMessage>,
) -> ReceiverStream<Result<v1::CoordinatorMessage, DialError>> {
    let (to_server, from_agent) = mpsc::channel(WIRE);
    let (to_agent, from_server) = mpsc::channel(WIRE);
    let wire = Wire {
        world: world.clone(),
        here,
        there: door.life.place.clone(),
        broken: CancellationToken::new(),
    };
    let (up, life, server) = (wire.clone(), agent.clone(), door.life.clone());
    tokio::spawn(async move {
        loop {
            let message = tokio::select! {
                biased;
                () = life.over.cancelled() => break,
                () = server.over.cancelled() => break,
                () = up.broken.cancelled() => break,
                message = outbound.recv() => message,
            };
            let Some(message) = message else { return };
            if up.carry().await.is_err() || to_server.send(Ok(message)).await.is_err() {
                break;
            }
        }
        // Half of the broken streams stay open for the coordinator: nobody told it.
        if up.world.dice.chance(0.5) {
            tokio::time::sleep(Duration::from_secs(120)).await;
        }
        drop(to_server);
    });
    let (down, life) = (wire, door.life.clone());
    tokio::spawn(async move {
        let inbound = Box::pin(ReceiverStream::new(from_agent));
        let mut replies = door.service.serve(&token, inbound).await;
        loop {
            let reply = tokio::select! {
                biased;
                () = life.over.cancelled() => break,
                () = down.broken.cancelled() => break,
                reply = replies.next() => reply,
            };
            let Some(reply) = reply else { return };
            let reply = reply.map_err(|status| DialError(status.message().to_owned()));
            if down.carry().await.is_err() || to_agent.send(reply).await.is_err() {
                break;
            }
        }
        let _closed = to_agent.send(Err(DialError("connection reset".into()))).await;
    });
    ReceiverStream::new(from_server)
}

#[derive(Clone)]
struct Wire {
    world: Arc<World>,
    here: Place,
    there: Place,
    broken: CancellationToken,
}

/// The connection broke.
struct Broke;

impl Wire {
    /// One message on its way.
    async fn carry(&self) -> Result<(), Broke> {
        let (slow, cut) = {
            let weather = self.world.weather();
            (weather.stream_slow, weather.stream_cut)
        };
        let dice = &self.world.dice;
        if dice.chance(slow) {
            tokio::time::sleep(dice.long_tailed_ms(5..15_000)).await;
        }
        let mut waited = Duration::ZERO;
        while self.world.is_cut(&self.here, &self.there) {
            // TCP tries for a while; keep-alives end it then.
            if waited > Duration::from_secs(30) {
                self.broken.cancel();
                return Err(Broke);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            waited += Duration::from_secs(1);
        }
        if dice.chance(cut) {
            self.broken.cancel();
        }
        if self.broken.is_cancelled() { Err(Broke) } else { Ok(()) }
    }
}
