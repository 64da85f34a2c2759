//! The way to the coordinators in production: gRPC over TLS, one connection per attempt, the token read each time.

use std::path::PathBuf;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use trunkline_kit::config;
use trunkline_kit::grpc::{self, Dial};
use trunkline_proto::v1;
use trunkline_proto::v1::nodes_client::NodesClient;

use crate::chain;
use crate::port::{DialError, Dialer, Inbound, Target};

/// Largest message that is read; the books of a node come in parts.
const MAX_MESSAGE: usize = 4 << 20;

/// Dials the coordinators of `--coordinator`.
#[derive(Debug, Clone)]
pub struct GrpcDialer {
    coordinators: Vec<config::Target>,
    ca_file: PathBuf,
    token_file: PathBuf,
}

impl GrpcDialer {
    /// For these servers; both files are read again for each attempt.
    pub fn new(coordinators: Vec<config::Target>, ca_file: PathBuf, token_file: PathBuf) -> Self {
        Self { coordinators, ca_file, token_file }
    }

    /// Connects to the first of the target's addresses that accepts.
    async fn connect(&self, target: &Target) -> Result<Channel, DialError> {
        let dials: Vec<Dial> = grpc::resolve_redirect(&target.address, &target.server_name)
            .await
            .map_err(|e| told(&e))?;
        let mut last = DialError(format!("'{}' has no address", target.address));
        for dial in &dials {
            match grpc::connect(dial, &self.ca_file).await {
                Ok(channel) => return Ok(channel),
                Err(error) => last = told(&error),
            }
        }
        Err(last)
    }
}

impl Dialer for GrpcDialer {
    fn targets(&self) -> BoxFuture<'_, Result<Vec<Target>, DialError>> {
        async {
            let dials = grpc::resolve(&self.coordinators).await.map_err(|e| told(&e))?;
            let target = |dial: Dial| Target {
                address: dial.address.to_string(),
                server_name: dial.tls_name,
            };
            Ok(dials.into_iter().map(target).collect())
        }
        .boxed()
    }

    fn open<'a>(
        &'a self,
        target: &'a Target,
        outbound: mpsc::Receiver<v1::AgentMessage>,
    ) -> BoxFuture<'a, Result<Inbound, DialError>> {
        async move {
            let token = self.token()?;
            let mut bearer: MetadataValue<_> = format!("Bearer {token}")
                .parse()
                .map_err(|_| DialError("the token holds characters that no token has".into()))?;
            bearer.set_sensitive(true);
            let channel = self.connect(target).await?;
            let mut client = NodesClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
            let mut request = tonic::Request::new(ReceiverStream::new(outbound));
            request.metadata_mut().insert("authorization", bearer);
            let stream = client.session(request).await.map_err(|s| refused(&s))?.into_inner();
            // The connection lives as long as the stream.
            let inbound = stream.map(move |message| {
                let _connection = &client;
                message.map_err(|status| refused(&status))
            });
            Ok(Box::pin(inbound) as Inbound)
        }
        .boxed()
    }

    fn token(&self) -> Result<String, DialError> {
        let path = self.token_file.display();
        let text = std::fs::read_to_string(&self.token_file)
            .map_err(|e| DialError(format!("failed to read the token file '{path}': {e}")))?;
        match text.trim() {
            "" => Err(DialError(format!("the token file '{path}' is empty"))),
            token => Ok(token.to_owned()),
        }
    }
}

fn told(error: &grpc::DialError) -> DialError {
    DialError(chain(error))
}

fn refused(status: &tonic::Status) -> DialError {
    DialError(format!("{:?}: {}", status.code(), status.message()))
}
