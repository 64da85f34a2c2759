//! Certificates of a run: one authority, and leaves for the names that are served.

use crate::{Error, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::path::{Path, PathBuf};

/// The name that agents verify the coordinator under, whatever address they dial (design §5).
pub const COORDINATOR: &str = "trunkline-coordinator.trunkline-system.svc";

/// An authority whose certificate is in `file`.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    pem: String,
    der: Vec<u8>,
}

/// Files of a served certificate.
#[derive(Debug, Clone)]
pub struct Served {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn bad(error: rcgen::Error) -> Error {
    Error::say(format!("cannot make a certificate: {error}"))
}

impl Authority {
    /// Makes an authority and writes `NAME.crt` into `folder`.
    pub fn new(folder: &Path, name: &str) -> Result<Self> {
        let key = KeyPair::generate().map_err(bad)?;
        let mut params = CertificateParams::new(Vec::new()).map_err(bad)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).map_err(bad)?;
        let file = folder.join(format!("{name}.crt"));
        std::fs::write(&file, certificate.pem()).map_err(Error::file(&file))?;
        let (pem, der) = (certificate.pem(), certificate.der().to_vec());
        Ok(Self { issuer: Issuer::new(params, key), file, pem, der })
    }

    /// The certificate's file, PEM.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The certificate, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The certificate, DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Issues a server certificate for DNS names and IP addresses; writes `NAME.crt` and `NAME.key` into `folder`.
    pub fn serve(&self, folder: &Path, name: &str, names: &[&str]) -> Result<Served> {
        let key = KeyPair::generate().map_err(bad)?;
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(bad)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(bad)?;
        let served = Served {
            cert: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        std::fs::write(&served.cert, certificate.pem()).map_err(Error::file(&served.cert))?;
        std::fs::write(&served.key, key.serialize_pem()).map_err(Error::file(&served.key))?;
        Ok(served)
    }
}
