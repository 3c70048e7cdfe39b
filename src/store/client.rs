//! The few S3 calls the service makes, over `aws-sdk-s3`.
//! Knows nothing of workspaces or manifests. Invariant: every call is bounded in time and retried by the SDK.

use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{DisplayErrorContext, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    BucketLocationConstraint, CreateBucketConfiguration, Delete, ObjectIdentifier,
};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::settings::S3Settings;

const DELETE_BATCH: usize = 1000;
const MAX_BODY_SILENCE: Duration = Duration::from_secs(30);
/// Files, and parts of files, of all sessions together that may be in memory on their way to the store.
const MAX_BUFFERS: usize = 16;
/// What RFC 8187 lets stand unescaped is letters, digits and these.
const ESCAPED_IN_HEADER: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no such object")]
    NotFound,
    /// The reason may name addresses and paths of the operator's; it is logged, not shown.
    #[error("the S3 store failed to {action}")]
    Failed {
        action: &'static str,
        reason: String,
    },
    #[error("the S3 store did not answer in time")]
    TimedOut,
    #[error("a workspace file could not be read: {0}")]
    File(#[from] std::io::Error),
}

#[derive(Clone)]
pub struct ObjectStore {
    pub(super) client: Client,
    /// Signs links; has the public address if callers reach S3 by another one.
    signer: Client,
    pub(super) bucket: String,
    region: String,
    pub(super) file_buffers: Arc<Semaphore>,
    pub(super) part_buffers: Arc<Semaphore>,
}

/// How the service reaches its S3, once it is decided which one that is.
pub struct Connection {
    pub endpoint_url: Option<String>,
    pub credentials: Option<(String, String)>,
}

impl ObjectStore {
    pub async fn connect(settings: &S3Settings, connection: Connection) -> Self {
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(settings.region.clone()))
            .retry_config(RetryConfig::standard().with_max_attempts(3))
            .timeout_config(timeouts());
        if let Some((id, secret)) = connection.credentials {
            loader =
                loader.credentials_provider(Credentials::new(id, secret, None, None, "cellblock"));
        }
        let shared = loader.load().await;
        let client_for = |endpoint: Option<&String>| {
            let mut builder = aws_sdk_s3::config::Builder::from(&shared)
                .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
                .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
                .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
            if let Some(endpoint) = endpoint {
                builder = builder.endpoint_url(endpoint).force_path_style(true);
            }
            Client::from_conf(builder.build())
        };
        let endpoint = connection.endpoint_url;
        Self {
            client: client_for(endpoint.as_ref()),
            signer: client_for(settings.public_endpoint_url.as_ref().or(endpoint.as_ref())),
            bucket: settings.bucket.clone(),
            region: settings.region.clone(),
            file_buffers: Arc::new(Semaphore::new(MAX_BUFFERS)),
            part_buffers: Arc::new(Semaphore::new(MAX_BUFFERS)),
        }
    }

    pub async fn ensure_bucket(&self) -> Result<(), StoreError> {
        match self.client.head_bucket().bucket(&self.bucket).send().await {
            Ok(_) => return Ok(()),
            Err(error) if status_of(&error) == Some(404) => {}
            Err(error) => return Err(failed("reach the bucket", error)),
        }
        tracing::info!(bucket = self.bucket, "creating the bucket");
        let mut request = self.client.create_bucket().bucket(&self.bucket);
        if self.region != "us-east-1" {
            let place = BucketLocationConstraint::from(self.region.as_str());
            let configuration = CreateBucketConfiguration::builder()
                .location_constraint(place)
                .build();
            request = request.create_bucket_configuration(configuration);
        }
        match request.send().await {
            Ok(_) => Ok(()),
            Err(error) if status_of(&error) == Some(409) => Ok(()),
            Err(error) => Err(failed("create the bucket", error)),
        }
    }

    /// One cheap request: is the store there and the bucket ours?
    pub async fn check(&self) -> Result<(), StoreError> {
        let request = self.client.head_bucket().bucket(&self.bucket).send();
        match tokio::time::timeout(Duration::from_secs(2), request).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed("reach the bucket", error)),
            Err(_) => Err(StoreError::TimedOut),
        }
    }

    /// Gives the object's ETag.
    pub async fn put(
        &self,
        key: &str,
        body: Bytes,
        content_type: &str,
    ) -> Result<String, StoreError> {
        let request = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_type(content_type);
        let answer = request.body(ByteStream::from(body)).send().await;
        let answer = answer.map_err(|error| failed("store an object", error))?;
        Ok(answer.e_tag().unwrap_or_default().to_owned())
    }

    pub async fn get(&self, key: &str) -> Result<ByteStream, StoreError> {
        match self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(key)
            .send()
            .await
        {
            Ok(answer) => Ok(answer.body),
            // Only the store's own word counts: a proxy's 404 must not make a session look empty.
            Err(error) if error.as_service_error().is_some_and(|e| e.is_no_such_key()) => {
                Err(StoreError::NotFound)
            }
            Err(error) => Err(failed("read an object", error)),
        }
    }

    pub async fn get_all(&self, key: &str, max_bytes: usize) -> Result<Vec<u8>, StoreError> {
        let mut body = self.get(key).await?;
        let mut all = Vec::new();
        while let Some(chunk) = next_chunk(&mut body).await? {
            all.extend_from_slice(&chunk);
            if all.len() > max_bytes {
                return Err(failed_because(
                    "read an object",
                    format!("{key} is larger than {max_bytes} bytes"),
                ));
            }
        }
        Ok(all)
    }

    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        let mut pages = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(prefix)
            .into_paginator()
            .send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failed("list objects", error))?;
            keys.extend(
                page.contents()
                    .iter()
                    .filter_map(|object| object.key().map(str::to_owned)),
            );
        }
        Ok(keys)
    }

    /// How many objects were deleted; keys that were not there count too, as S3 counts them.
    pub async fn delete(&self, keys: &[String]) -> Result<usize, StoreError> {
        for batch in keys.chunks(DELETE_BATCH) {
            let objects = batch
                .iter()
                .filter_map(|key| ObjectIdentifier::builder().key(key).build().ok());
            let delete = Delete::builder()
                .set_objects(Some(objects.collect()))
                .quiet(true)
                .build();
            let delete = delete.map_err(|error| failed("delete objects", error))?;
            let answer = self
                .client
                .delete_objects()
                .bucket(&self.bucket)
                .delete(delete)
                .send()
                .await;
            let answer = answer.map_err(|error| failed("delete objects", error))?;
            if let Some(error) = answer.errors().first() {
                let reason = error
                    .message()
                    .or(error.code())
                    .unwrap_or("no reason given")
                    .to_owned();
                return Err(failed_because("delete objects", reason));
            }
        }
        Ok(keys.len())
    }

    /// A link that downloads the object as a file, whatever its type.
    pub async fn presign(
        &self,
        key: &str,
        file_name: &[u8],
        expires_in: Duration,
    ) -> Result<String, StoreError> {
        let config = PresigningConfig::expires_in(expires_in)
            .map_err(|error| failed("sign a link", error))?;
        let request = self.signer.get_object().bucket(&self.bucket).key(key);
        let request = request.response_content_disposition(attachment_header(file_name));
        let signed = request
            .presigned(config)
            .await
            .map_err(|error| failed("sign a link", error))?;
        Ok(signed.uri().to_owned())
    }
}

/// `Content-Disposition: attachment` with the name in both spellings of RFC 6266.
pub fn attachment_header(file_name: &[u8]) -> String {
    let text = String::from_utf8_lossy(file_name);
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.() ".contains(c) {
            c
        } else {
            '_'
        }
    };
    let ascii: String = text.chars().map(plain).collect();
    let encoded = percent_encoding::percent_encode(text.as_bytes(), ESCAPED_IN_HEADER).to_string();
    format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(Duration::from_secs(60))
        .operation_timeout(Duration::from_secs(120))
        .build()
}

fn status_of<E>(error: &SdkError<E>) -> Option<u16> {
    error
        .raw_response()
        .map(|response| response.status().as_u16())
}

pub(super) fn failed<E: std::error::Error>(action: &'static str, error: E) -> StoreError {
    failed_because(action, DisplayErrorContext(&error).to_string())
}

fn failed_because(action: &'static str, reason: String) -> StoreError {
    tracing::warn!(action, reason, "the S3 store failed");
    StoreError::Failed { action, reason }
}

/// The next part of a body; one that stops coming is given up.
pub(super) async fn next_chunk(body: &mut ByteStream) -> Result<Option<Bytes>, StoreError> {
    match tokio::time::timeout(MAX_BODY_SILENCE, body.next()).await {
        Ok(chunk) => chunk
            .transpose()
            .map_err(|error| failed("read an object", error)),
        Err(_) => Err(StoreError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_file_names_cannot_break_the_header() {
        for name in ["a\"b", "a\r\nSet-Cookie: x", "日本.txt", "a\\b", "a;b"] {
            let header = attachment_header(name.as_bytes());
            assert!(
                header.is_ascii() && !header.contains(['\r', '\n', '\\']),
                "{header}"
            );
            assert_eq!(header.matches('"').count(), 2, "{header}");
        }
        assert!(attachment_header("é.csv".as_bytes()).ends_with("filename*=UTF-8''%C3%A9.csv"));
    }
}
