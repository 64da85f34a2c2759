//! A real etcd and kube-apiserver on loopback (`kube.md` §9).
//!
//! RBAC is on and Priority and Fairness too; the admission plugin ServiceAccount is off, because no controller makes
//! default accounts here. The binaries come from `KUBEBUILDER_ASSETS`, or from the cache that `cargo xtask
//! control-plane` fills. Both processes end with this value.

use crate::certs::Authority;
use crate::kubeconfig::{self, Identity};
use crate::process::Proc;
use crate::{Error, Result, poll, ports};
use kube::Client;
use rustix::process::Signal;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use trunkline_sim::rest::RestClient;

const GO_MOD: &str = include_str!("../../xtask/control-plane/go.mod");
const ADMIN_TOKEN: &str = "admin-of-this-run";
const READY_WITHIN: Duration = Duration::from_secs(90);

/// How the API server is started.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Serve continue pages from etcd, so that compaction makes a real 410 on the next page (`kube.md` §8.3).
    pub pages_from_etcd: bool,
    /// Compact etcd this often instead of every 5 minutes.
    pub compaction: Option<Duration>,
    /// More flags for kube-apiserver.
    pub flags: Vec<String>,
}

/// A running control plane.
pub struct ControlPlane {
    folder: PathBuf,
    authority: Arc<Authority>,
    assets: PathBuf,
    options: Options,
    api_port: u16,
    etcd_port: u16,
    apiserver: Option<Proc>,
    etcd: Proc,
}

/// The folder with `etcd` and `kube-apiserver`, or why there is none.
pub fn assets() -> Result<PathBuf> {
    let whole =
        |folder: &Path| ["etcd", "kube-apiserver"].iter().all(|name| folder.join(name).is_file());
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty())
    {
        let folder = PathBuf::from(folder);
        return if whole(&folder) {
            Ok(folder)
        } else {
            Err(Error::say(format!(
                "KUBEBUILDER_ASSETS ({}) lacks etcd or kube-apiserver",
                folder.display()
            )))
        };
    }
    let version = GO_MOD
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .unwrap_or_default()
        .trim();
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let own = cache.map(|cache| cache.join("trunkline").join(format!("control-plane-{version}")));
    let usual = PathBuf::from("/usr/local/kubebuilder/bin");
    own.into_iter().chain([usual]).find(|folder| whole(folder)).ok_or_else(|| {
        Error::say("no etcd and kube-apiserver: run `cargo xtask control-plane`, or set KUBEBUILDER_ASSETS")
    })
}

impl ControlPlane {
    /// Starts both, in `folder`, and waits until the API server is ready.
    pub async fn start(folder: &Path, options: Options) -> Result<Self> {
        let assets = assets()?;
        std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        let authority = Arc::new(Authority::new(folder, "kube-ca")?);
        authority.serve(
            folder,
            "apiserver",
            &["localhost", "127.0.0.1", "kubernetes.default.svc"],
        )?;
        let accounts = rcgen::KeyPair::generate()
            .map_err(|error| Error::say(format!("cannot make the account key: {error}")))?;
        for (name, text) in [
            ("sa.key", accounts.serialize_pem()),
            ("sa.pub", accounts.public_key_pem()),
            ("tokens.csv", format!("{ADMIN_TOKEN},admin,1,\"system:masters\"\n")),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(Error::file(&path))?;
        }
        let etcd_port = ports::free()?;
        let etcd = start_etcd(&assets, folder, etcd_port, false)?;
        let mut plane = Self {
            folder: folder.to_owned(),
            authority,
            assets,
            options,
            api_port: ports::free()?,
            etcd_port,
            apiserver: None,
            etcd,
        };
        // A port may be taken between being found free and being used; then the process ends at once.
        for _ in 0..2 {
            if plane.start_apiserver().await.is_ok() {
                return Ok(plane);
            }
            if plane.etcd.exited().is_some() {
                plane.etcd_port = ports::free()?;
                plane.etcd = start_etcd(&plane.assets, folder, plane.etcd_port, false)?;
            }
            plane.api_port = ports::free()?;
        }
        plane.start_apiserver().await?;
        Ok(plane)
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_port)
    }

    /// The etcd endpoint, plain HTTP.
    pub fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    /// PEM of the API server's authority.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// File of the API server's authority.
    pub fn ca_file(&self) -> &Path {
        self.authority.file()
    }

    /// The folder of this control plane's files and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's bearer token.
    pub fn admin_token(&self) -> &'static str {
        ADMIN_TOKEN
    }

    /// A client with all rights.
    pub fn admin(&self) -> Result<Client> {
        self.client(ADMIN_TOKEN)
    }

    /// A client with the rights of a token.
    pub fn client(&self, token: &str) -> Result<Client> {
        let uri = self.url().parse().map_err(|_| Error::say("a URL that is none"))?;
        let mut config = kube::Config::new(uri);
        config.root_cert = Some(vec![self.authority.der().to_vec()]);
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).map_err(Error::kube("make a client"))
    }

    /// Writes a kubeconfig for this API server.
    pub fn kubeconfig(&self, path: &Path, who: Identity<'_>) -> Result<()> {
        kubeconfig::write(path, &self.url(), Some(self.authority.pem()), who)
    }

    /// Stops the API server (SIGTERM), leaving etcd running.
    pub async fn stop_apiserver(&mut self) -> Result<()> {
        if let Some(mut running) = self.apiserver.take() {
            running.stop(Duration::from_secs(70)).await?;
        }
        Ok(())
    }

    /// Ends the API server as a crash does (SIGKILL), leaving etcd running.
    pub fn kill_apiserver(&mut self) {
        if let Some(mut running) = self.apiserver.take() {
            running.kill();
        }
    }

    /// A second API server that stays where this one is now: on a copy of etcd's data, with the same authorities.
    pub async fn lagging_copy(&self) -> Result<Self> {
        let etcd_port = ports::free()?;
        let data = |port: u16| self.folder.join(format!("etcd-{port}"));
        // Stopped, so that the files belong together; nothing of etcd's is written through buffers of its own for long.
        self.etcd.signal(Signal::STOP)?;
        let copied = copy_folder(&data(self.etcd_port), &data(etcd_port));
        self.etcd.signal(Signal::CONT)?;
        copied?;
        let etcd = start_etcd(&self.assets, &self.folder, etcd_port, true)?;
        let mut copy = Self {
            folder: self.folder.clone(),
            authority: Arc::clone(&self.authority),
            assets: self.assets.clone(),
            options: self.options.clone(),
            api_port: ports::free()?,
            etcd_port,
            apiserver: None,
            etcd,
        };
        copy.start_apiserver().await?;
        Ok(copy)
    }

    /// Compacts etcd's history up to now, so that continue tokens and old resourceVersions expire (`kube.md` §8.3).
    pub async fn compact(&self) -> Result<()> {
        let etcd = RestClient::new(&self.etcd_url());
        let failed = |error: trunkline_sim::rest::Error| Error::say(format!("etcd: {error}"));
        let key = json!({ "key": "AA==", "range_end": "AA==", "limit": "1" });
        let now: serde_json::Value = etcd.post("/v3/kv/range", &key).await.map_err(failed)?;
        let revision = now.pointer("/header/revision").cloned().unwrap_or_default();
        let body = json!({ "revision": revision, "physical": true });
        let _done: serde_json::Value =
            etcd.post("/v3/kv/compaction", &body).await.map_err(failed)?;
        Ok(())
    }

    /// Starts the API server (again) on the same port and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        let mut process = self.spawn_apiserver()?;
        let client = self.admin()?;
        let ready = poll::eventually("kube-apiserver is ready", READY_WITHIN, async || {
            // An ended process will never be ready: that ends the wait, it does not repeat it.
            if let Err(ended) = process.must_run() {
                return Ok(Err(ended));
            }
            let request = http::Request::get("/readyz")
                .body(Vec::new())
                .map_err(|error| error.to_string())?;
            let answer =
                tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
            match answer {
                Ok(Ok(_)) => Ok(Ok(())),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer".to_owned()),
            }
        })
        .await;
        match ready {
            Ok(Ok(())) => {
                self.apiserver = Some(process);
                Ok(())
            }
            Ok(Err(error)) | Err(error) => {
                Err(Error::say(format!("{error}\netcd's last words:\n{}", self.etcd.tail(5))))
            }
        }
    }

    fn spawn_apiserver(&self) -> Result<Proc> {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let mut command = Command::new(self.assets.join("kube-apiserver"));
        command.args([
            format!("--etcd-servers={}", self.etcd_url()),
            format!("--secure-port={}", self.api_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", at("apiserver.crt")),
            format!("--tls-private-key-file={}", at("apiserver.key")),
            format!("--cert-dir={}", at("")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        if self.options.pages_from_etcd {
            command.arg("--feature-gates=ListFromCacheSnapshot=false");
        }
        if let Some(every) = self.options.compaction {
            command.arg(format!("--etcd-compaction-interval={}ms", every.as_millis()));
        }
        command.args(&self.options.flags);
        Proc::start("kube-apiserver", &mut command, &self.folder.join("kube-apiserver.log"))
    }
}

/// `copied`: its data is a copy of another member's.
fn start_etcd(assets: &Path, folder: &Path, port: u16, copied: bool) -> Result<Proc> {
    let peer = ports::free()?;
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let mut command = Command::new(assets.join("etcd"));
    command.args([
        format!("--data-dir={}", folder.join(format!("etcd-{port}")).display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]);
    if copied {
        command.arg("--force-new-cluster");
    }
    Proc::start("etcd", &mut command, &folder.join("etcd.log"))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::file(to))?;
    for entry in std::fs::read_dir(from).map_err(Error::file(from))? {
        let entry = entry.map_err(Error::file(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            std::fs::copy(&source, &target).map_err(Error::file(&source))?;
        }
    }
    Ok(())
}
