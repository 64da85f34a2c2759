//! Free ports on loopback.
//!
//! The port is free when it is returned, not reserved: whoever starts a server on it may still lose a race against
//! another test, so servers that can print a port they chose themselves should do that instead.

use crate::{Error, Result};
use std::net::{Ipv4Addr, TcpListener};

/// A port on 127.0.0.1 that nobody listens on.
pub fn free() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| Error::say(format!("no free port on 127.0.0.1: {error}")))?;
    let address = listener
        .local_addr()
        .map_err(|error| Error::say(format!("no free port on 127.0.0.1: {error}")))?;
    Ok(address.port())
}
