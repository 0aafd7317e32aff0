//! The keys of a job's TLS: derived from its secret, so that nobody has to make or carry certificates.
//!
//! Whoever calls has one pair of Ed25519 keys and whoever is called another, both made of the job's secret, and each end takes
//! nothing but the other's public key, sent as it is (RFC 7250). So the first words of TLS 1.3 already prove to both ends that
//! the other knows the secret; what is then said cannot be read even by whoever learns the secret later. The proof of
//! [`proof`](super::proof) follows inside, and says who is there.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::proof::Secret;

/// What stands before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

fn pair(secret: &Secret, whose: &[u8]) -> Result<CertifiedKey, Error> {
    let bytes = [&PKCS8[..], secret.derive(whose).bytes()].concat();
    let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(bytes))?;
    let public = key.public_key().map(|key| CertificateDer::from(key.as_ref().to_vec()));
    Ok(CertifiedKey::new(public.into_iter().collect(), key))
}

fn caller(secret: &Secret) -> Result<CertifiedKey, Error> {
    pair(secret, b"tls caller")
}

fn door(secret: &Secret) -> Result<CertifiedKey, Error> {
    pair(secret, b"tls door")
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What a caller of this job needs.
pub(super) fn of_caller(secret: &Secret) -> io::Result<Arc<ClientConfig>> {
    let config = || {
        let (own, theirs) = (caller(secret)?, Only::of(&door(secret)?));
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(theirs));
        let own = AlwaysResolvesClientRawPublicKeys::new(Arc::new(own));
        let mut config = config.with_client_cert_resolver(Arc::new(own));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    };
    config().map(Arc::new).map_err(|error: Error| io::Error::other(error))
}

/// What a door of this job needs.
pub(super) fn of_door(secret: &Secret) -> io::Result<Arc<ServerConfig>> {
    let config = || {
        let (own, theirs) = (door(secret)?, Only::of(&caller(secret)?));
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
        let config = config.with_client_cert_verifier(Arc::new(theirs));
        let own = AlwaysResolvesServerRawPublicKeys::new(Arc::new(own));
        let mut config = config.with_cert_resolver(Arc::new(own));
        config.send_tls13_tickets = 0;
        Ok(config)
    };
    config().map(Arc::new).map_err(|error: Error| io::Error::other(error))
}

/// Takes this public key and no other.
#[derive(Debug)]
struct Only {
    key: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Only {
    fn of(pair: &CertifiedKey) -> Self {
        let key = pair.cert.first().map(|key| key.to_vec()).unwrap_or_default();
        Self { key, algorithms: ring::default_provider().signature_verification_algorithms }
    }

    /// Public keys are no secrets, so they may be compared byte by byte.
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        match !self.key.is_empty() && key.as_ref() == self.key {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn signed(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// What both ends do alike with signatures.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3 is spoken".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.signed(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Only {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
