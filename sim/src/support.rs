//! Small things that the simulators share.

use tokio::signal::unix::{SignalKind, signal};

/// Returns at SIGINT or SIGTERM. Where a handler cannot be installed, the process just dies of the signal.
pub async fn until_signal() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Makes aws-lc the process's TLS provider; a second call changes nothing.
pub fn install_tls_provider() {
    // An error only says that one is installed already.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// An error and its causes, joined by colons.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries repeat the cause in their own message.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
