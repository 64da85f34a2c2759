//! How bad it is: rates of single faults, and spells that last for a while.
//!
//! Each seed draws its own weather, so that one run has many lost replies and no partitions, and the next the reverse; a
//! mean of everything at once would hide faults that need a quiet neighbour. When the trouble is over all of it is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use trunkline_core::id::NodeName;

use super::dice::Dice;

/// Somebody who can be cut off from somebody else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The API server, all replicas.
    Api,
    /// A node: its agent and its kubelet.
    Node(NodeName),
    /// A coordinator's replica, by number.
    Coordinator(u32),
}

/// The weather now.
#[derive(Debug, Clone, Default)]
pub struct Weather {
    /// An API request takes seconds.
    pub api_slow: f64,
    /// An API request does not arrive.
    pub api_lost: f64,
    /// An API request is executed and its answer lost.
    pub api_reply_lost: f64,
    /// An API request is refused with 429 or a 5xx.
    pub api_refused: f64,
    /// Something before the API server answers: HTML, 404 or 200.
    pub api_imposter: f64,
    /// A list that is not whole: cut off, a page, without items.
    pub list_broken: f64,
    /// A complete-looking empty list.
    pub list_empty: f64,
    /// A list or watch that is answered with 410.
    pub gone: f64,
    /// A watch ends, breaks off or falls silent.
    pub watch_cut: f64,
    /// An EC2 call fails before it did anything: throttled, 5xx, lost.
    pub ec2_failed: f64,
    /// An EC2 call does its work and its answer is lost.
    pub ec2_reply_lost: f64,
    /// An EC2 call takes long, to beyond its caller's patience.
    pub ec2_slow: f64,
    /// EC2 shows an older state, up to the promised window.
    pub ec2_lag: f64,
    /// A session's message is late.
    pub stream_slow: f64,
    /// A session breaks, from one side or both.
    pub stream_cut: f64,
    /// A look at the node fails in part or as a whole, or takes long.
    pub look_failed: f64,
    /// A cgroup's appearance is not noticed.
    pub sign_lost: f64,
    /// CNI ADD or DEL is slow.
    pub cni_slow: f64,
    /// CNI ADD outlives its caller: the link comes late.
    pub cni_late: f64,
    /// Who cannot reach whom.
    pub cuts: BTreeSet<(Place, Place)>,
    /// Nodes about whose pods lists *and* GETs lie: gone, they say.
    pub lies: BTreeSet<NodeName>,
    /// How far each replica of the API server's cache is behind.
    pub behind: [Duration; 2],
    /// Watches of these places show nothing, although their connection lives.
    pub silent: BTreeSet<Place>,
}

impl Weather {
    /// Bad weather of this run's own kind.
    pub fn draw(dice: &Dice) -> Self {
        let mut weather = Self::default();
        for rate in [
            &mut weather.api_slow,
            &mut weather.api_lost,
            &mut weather.api_reply_lost,
            &mut weather.api_refused,
            &mut weather.api_imposter,
            &mut weather.list_broken,
            &mut weather.list_empty,
            &mut weather.gone,
            &mut weather.watch_cut,
            &mut weather.ec2_failed,
            &mut weather.ec2_reply_lost,
            &mut weather.ec2_slow,
            &mut weather.ec2_lag,
            &mut weather.stream_slow,
            &mut weather.look_failed,
            &mut weather.sign_lost,
            &mut weather.cni_slow,
            &mut weather.cni_late,
        ] {
            // A third of the faults are absent, the others rare to frequent.
            *rate = dice.pick(&[0.0, 0.0, 0.01, 0.05, 0.15, 0.3]).unwrap_or_default();
        }
        // These come with each of thousands of messages or looks.
        weather.stream_cut = dice.pick(&[0.0, 0.0001, 0.001, 0.005]).unwrap_or_default();
        weather.stream_slow /= 10.0;
        weather.look_failed /= 10.0;
        weather
    }

    /// Whether these two cannot reach each other.
    pub fn is_cut(&self, one: &Place, other: &Place) -> bool {
        self.cuts.contains(&(one.clone(), other.clone()))
            || self.cuts.contains(&(other.clone(), one.clone()))
    }
}
