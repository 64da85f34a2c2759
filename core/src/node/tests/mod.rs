//! The node's books against a small, exact world: an API server that knows the truth, an EC2 that keeps its promises, an
//! agent that says what it is told to say. Faults are chosen per test.

mod allocation;
mod attacks;
mod audit;
mod heal;
mod properties;
mod release;
mod remains;
mod restart;
mod world;
