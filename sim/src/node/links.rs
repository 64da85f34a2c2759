//! A node's links: real ones in a namespace, or a table in memory.
//!
//! In memory (`--links none`) nothing outside this process sees them: that is for benches whose agents are fakes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::netns::{Error, Netns, TRUNK_LINK};

/// Where links live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// In a network namespace a node.
    Real,
    /// In memory.
    None,
}

/// Links of one node, by name.
#[derive(Debug)]
pub enum Links {
    /// In a namespace.
    Real(Netns),
    /// In memory: name to MAC.
    Memory(Mutex<BTreeMap<String, String>>),
}

impl Links {
    /// Makes the node's namespace, or its table.
    pub async fn create(kind: Kind, netns_name: &str) -> Result<Self, Error> {
        match kind {
            Kind::Real => Netns::create(netns_name).await.map(Self::Real),
            Kind::None => Ok(Self::Memory(Mutex::default())),
        }
    }

    /// The namespace's file, if there is one.
    pub fn netns(&self) -> Option<PathBuf> {
        match self {
            Self::Real(netns) => Some(netns.path()),
            Self::Memory(_) => None,
        }
    }

    /// Makes the trunk link.
    pub async fn set_trunk(&self, mac: &str) -> Result<(), Error> {
        match self {
            Self::Real(netns) => netns.set_trunk(mac).await,
            Self::Memory(table) => {
                let mut table = lock(table);
                table.clear();
                table.insert(TRUNK_LINK.to_owned(), mac.to_owned());
                Ok(())
            }
        }
    }

    /// Removes the trunk link, and with it every link on it (a reboot).
    pub async fn clear(&self) -> Result<(), Error> {
        match self {
            Self::Real(netns) => netns.remove(TRUNK_LINK).await.map(drop),
            Self::Memory(table) => {
                lock(table).clear();
                Ok(())
            }
        }
    }

    /// Makes a branch link; a link of that name is deleted first.
    pub async fn add_branch(&self, name: &str, mac: &str) -> Result<(), Error> {
        match self {
            Self::Real(netns) => netns.add_branch(name, mac).await,
            Self::Memory(table) => {
                let mut table = lock(table);
                if !table.contains_key(TRUNK_LINK) {
                    return Err(Error::NoTrunk);
                }
                table.insert(name.to_owned(), mac.to_owned());
                Ok(())
            }
        }
    }

    /// Removes a link by name, whoever made it; says whether there was one.
    pub async fn remove(&self, name: &str) -> Result<bool, Error> {
        match self {
            Self::Real(netns) => netns.remove(name).await,
            Self::Memory(table) => Ok(lock(table).remove(name).is_some()),
        }
    }

    /// The MAC of the link of this name, if there is one.
    pub async fn mac_of(&self, name: &str) -> Result<Option<String>, Error> {
        match self {
            Self::Real(netns) => netns.mac_of(name).await,
            Self::Memory(table) => Ok(lock(table).get(name).cloned()),
        }
    }

    /// Removes the namespace; nothing works on it any more.
    pub fn destroy(&self) {
        if let Self::Real(netns) = self {
            netns.destroy();
        }
    }

    /// All links: name to MAC.
    pub async fn all(&self) -> Result<BTreeMap<String, String>, Error> {
        match self {
            Self::Real(netns) => netns.links().await,
            Self::Memory(table) => Ok(lock(table).clone()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
