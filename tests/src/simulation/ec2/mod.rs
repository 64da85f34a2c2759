//! EC2 in memory, behind the coordinator's port for it: what it keeps ([`account`]), and the way there and back ([`cloud`]).
//!
//! Only what trunks and branches need (`ec2.md` §6 to §8): idempotency tokens, one association for each trunk and VLAN, a
//! branch limit, describe output that lags by up to the promised window, effects that come although the caller gave up.

pub mod account;
pub mod cloud;
