use super::*;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;

struct Files {
    dir: tempfile::TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        install_provider();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self { dir: tempfile::tempdir().unwrap(), ca };
        std::fs::write(files.path("ca.pem"), files.ca.pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate for `name`; returns its key's PEM.
    fn issue(&self, name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.ca)
            .unwrap();
        std::fs::write(self.path("tls.crt"), cert.pem()).unwrap();
        std::fs::write(self.path("tls.key"), key.serialize_pem()).unwrap();
        key.serialize_pem()
    }

    async fn load(&self) -> Result<Arc<ServerCertificate>, TlsError> {
        ServerCertificate::load(&self.path("tls.crt"), &self.path("tls.key")).await
    }
}

/// One handshake against `config` as a client that wants `name`; the server's certificate.
async fn served(files: &Files, config: &Arc<ServerConfig>, name: &str) -> io::Result<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates([files.ca.der().clone()]);
    let mut client = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let listener = crate::net::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut connections = Box::pin(incoming(listener, Arc::clone(config)));
    let dial = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await
    };
    let accept = async { connections.next().await };
    tokio::select! {
        stream = dial => {
            let stream = stream?;
            let (_, session) = stream.get_ref();
            assert_eq!(session.alpn_protocol(), Some(b"h2".as_slice()));
            Ok(session.peer_certificates().unwrap()[0].to_vec())
        }
        never = async { accept.await; std::future::pending::<io::Result<Vec<u8>>>().await } => never,
    }
}

#[tokio::test]
async fn a_new_certificate_is_served_without_a_restart_and_half_a_rotation_is_not() {
    let files = Files::new();
    files.issue("coordinator.test");
    let certificate = files.load().await.unwrap();
    let config = certificate.server_config(&["h2"]).unwrap();
    let first = served(&files, &config, "coordinator.test").await.unwrap();

    let mut seen = None;
    assert!(!certificate.reload(&mut seen).await.unwrap());
    let old_key = std::fs::read_to_string(files.path("tls.key")).unwrap();
    let new_key = files.issue("coordinator.test");
    std::fs::write(files.path("tls.key"), old_key).unwrap();
    assert!(matches!(certificate.reload(&mut seen).await, Err(TlsError::Key { .. })));
    assert_eq!(served(&files, &config, "coordinator.test").await.unwrap(), first);

    std::fs::write(files.path("tls.key"), new_key).unwrap();
    assert!(certificate.reload(&mut seen).await.unwrap());
    assert_ne!(served(&files, &config, "coordinator.test").await.unwrap(), first);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let files = Files::new();
    files.issue("coordinator.test");
    let config = files.load().await.unwrap().server_config(&["h2"]).unwrap();
    assert!(served(&files, &config, "other.test").await.is_err());
}

#[tokio::test]
async fn bad_files_are_named() {
    let files = Files::new();
    let missing = files.load().await.unwrap_err();
    assert!(missing.to_string().contains("tls.crt"), "{missing}");
    files.issue("a.test");
    std::fs::write(files.path("tls.key"), "nothing").unwrap();
    assert!(matches!(files.load().await, Err(TlsError::Pem { what: "a private key", .. })));
    std::fs::write(files.path("ca.pem"), "nothing").unwrap();
    assert!(matches!(
        read_ca(&files.path("ca.pem")).await,
        Err(TlsError::Pem { what: "a certificate", .. })
    ));
}

#[tokio::test]
async fn a_channel_verifies_the_given_name_at_any_address() {
    let files = Files::new();
    files.issue("coordinator.test");
    let config = files.load().await.unwrap().server_config(&["h2"]).unwrap();
    let listener = crate::net::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tonic::transport::Server::builder()
        .add_routes(tonic::service::Routes::default())
        .serve_with_incoming_shutdown(incoming(listener, config), async { drop(stopped.await) });
    let server = tokio::spawn(server);
    let dial = |name: &str| crate::grpc::Dial { address, tls_name: name.to_owned() };
    let good = crate::grpc::connect(&dial("coordinator.test"), &files.path("ca.pem")).await;
    assert!(good.is_ok(), "{:?}", good.err());
    drop(good);
    let bad = crate::grpc::connect(&dial("other.test"), &files.path("ca.pem")).await;
    assert!(matches!(bad, Err(crate::grpc::DialError::Connect { .. })));
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_redirect_keeps_the_tls_name() {
    let dials = crate::grpc::resolve_redirect("127.0.0.1:61790", "coordinator.test").await.unwrap();
    assert_eq!(
        dials,
        [crate::grpc::Dial {
            address: "127.0.0.1:61790".parse().unwrap(),
            tls_name: "coordinator.test".into()
        }]
    );
    assert!(crate::grpc::resolve_redirect(":61790", "coordinator.test").await.is_err());
    let targets =
        crate::config::targets("https://127.0.0.1:1,https://127.0.0.1:1,https://[::1]:2").unwrap();
    assert_eq!(crate::grpc::resolve(&targets).await.unwrap().len(), 2);
}
