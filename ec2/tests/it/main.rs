//! The adapter against the EC2 simulator and against scripted servers.

// The helpers of tests are tests too: what goes wrong in them fails the test at once.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod accounts;
mod failures;
mod fence;
mod life;
mod lists;
mod node;
mod support;
