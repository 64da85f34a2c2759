//! Listening sockets and file descriptors.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::config::BindAddress;

/// Queue of connections that are not accepted yet.
const BACKLOG: u32 = 4096;

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}")]
pub struct BindError {
    /// The address.
    pub address: BindAddress,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Binds and listens. All addresses means IPv6 and IPv4 on one socket, or IPv4 alone where there is no IPv6.
pub async fn bind(address: &BindAddress) -> Result<TcpListener, BindError> {
    let bound = match address {
        BindAddress::All(port) => listen_on((Ipv6Addr::UNSPECIFIED, *port).into())
            .or_else(|_| listen_on((Ipv4Addr::UNSPECIFIED, *port).into())),
        BindAddress::Host(host, port) => {
            match tokio::net::lookup_host((host.as_str(), *port)).await {
                Ok(found) => listen_on_first(found),
                Err(error) => Err(error),
            }
        }
    };
    bound.map_err(|source| BindError { address: address.clone(), source })
}

fn listen_on_first(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// No delay, and TCP keepalive (20 s idle, 10 s apart, 3 times), so that a peer that vanished is noticed.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(20))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// Raises the soft limit of open files to the hard limit and returns it; `None` is unlimited. One agent is one file
/// descriptor, and container defaults are often 1,024 (`kube.md` §6.1).
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_addresses_accept_ipv4() {
        let listener = bind(&BindAddress::All(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        tune(&stream).unwrap();
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let first = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address: BindAddress = first.local_addr().unwrap().to_string().parse().unwrap();
        let error = bind(&address).await.unwrap_err();
        assert!(error.to_string().contains(&address.to_string()));
    }
}
