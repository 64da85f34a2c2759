//! Agents over a real gRPC connection on loopback: greetings, refusals, and one pod's life from want to deleted ENI. The API
//! server is scripted, EC2 is in memory, the books are the real ones.

mod greeting;
mod life;
mod status;
mod world;
