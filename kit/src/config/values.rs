//! Values of settings.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BindAddress {
    /// `:PORT`: all addresses.
    All(u16),
    /// `HOST:PORT`, the host an address or a name (IPv6 in brackets when written).
    Host(String, u16),
}

impl BindAddress {
    /// The port; 0 lets the kernel choose.
    pub fn port(&self) -> u16 {
        match self {
            Self::All(port) | Self::Host(_, port) => *port,
        }
    }

    /// The host, if a concrete one was given (`0.0.0.0` and `::` are none).
    pub fn concrete_host(&self) -> Option<&str> {
        match self {
            Self::Host(host, _) if host != "0.0.0.0" && host != "::" => Some(host),
            _ => None,
        }
    }
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "'{text}' is not a bind address: expected ':PORT', 'HOST:PORT' or '[IPV6]:PORT'"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let port = digits(port).and_then(|p| p.parse().ok()).ok_or_else(refused)?;
        if host.is_empty() {
            return Ok(Self::All(port));
        }
        Ok(Self::Host(plain_host(host).ok_or_else(refused)?, port))
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(port) => write!(f, ":{port}"),
            Self::Host(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Host(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// A host without brackets; IPv6 only in brackets.
fn plain_host(host: &str) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().is_ok().then(|| inner.to_owned());
    }
    let valid =
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    valid.then(|| host.to_owned())
}

fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

/// A server to dial: `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Name or address, without brackets; also the name that TLS verifies.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "https://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "https://{}:{}", self.host, self.port)
        }
    }
}

/// One `https://HOST:PORT`.
pub fn target(text: &str) -> Result<Target, String> {
    let refused = || format!("'{text}' is not a server address: expected 'https://HOST:PORT'");
    let rest = text.trim().strip_prefix("https://").ok_or_else(refused)?.trim_end_matches('/');
    match rest.parse::<BindAddress>() {
        Ok(BindAddress::Host(host, port)) if port > 0 => Ok(Target { host, port }),
        _ => Err(refused()),
    }
}

/// `https://HOST:PORT[,…]`, at least one.
pub fn targets(text: &str) -> Result<Vec<Target>, String> {
    text.split(',').map(target).collect()
}

/// A boolean as Go's `strconv.ParseBool` reads it.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("'{other}' is not a boolean: expected 'true' or 'false'")),
    }
}

/// A number in its type's range.
pub fn number<N: FromStr>(text: &str) -> Result<N, String> {
    let refused =
        || format!("'{text}' is not a number in the range of {}", std::any::type_name::<N>());
    text.trim().parse().map_err(|_| refused())
}

/// The path of a file, which need not exist yet.
pub fn file(text: &str) -> Result<PathBuf, String> {
    if text.trim().is_empty() {
        Err("is empty: expected the path of a file".into())
    } else {
        Ok(text.into())
    }
}

/// A duration as Go writes it: `5m`, `1m30s`, `250ms`, `1.5h`, `0`. Negative ones are refused.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refused =
        || format!("'{text}' is not a duration: expected for example '250ms', '30s' or '1m30s'");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() || total.is_zero() && rest == text {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
        let (value, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let value: f64 = value.parse().map_err(|_| refused())?;
        let part = Duration::try_from_secs_f64(value * unit_seconds(unit).ok_or_else(refused)?);
        total = total.checked_add(part.map_err(|_| refused())?).ok_or_else(refused)?;
        rest = tail;
    }
    Ok(total)
}

fn unit_seconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" | "μs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

/// Plain seconds, where the peer's flag has seconds, or a duration.
pub fn seconds_or_duration(text: &str) -> Result<Duration, String> {
    match digits(text) {
        Some(seconds) => {
            seconds.parse().map(Duration::from_secs).map_err(|_| format!("'{text}' is too large"))
        }
        None => duration(text),
    }
}
