//! The embedded S3 server as its clients see it: the AWS SDK and a plain HTTP client over a real socket.
//! Never looks into the server's modules; only crash tests look at its folder.
//! Invariant: every test has a server, a folder and a bucket of its own.

mod access;
mod crashes;
mod listing;
mod objects;
mod uploads;
mod writes;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::CompletedMultipartUpload;
use aws_sdk_s3::types::CompletedPart;
use cellblock::store::embedded::Credentials;
use cellblock::store::embedded::EmbeddedS3;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const BUCKET: &str = "artifacts";
const PART_BYTES: usize = 5 * 1024 * 1024;

struct TestServer {
    client: Client,
    endpoint: String,
    folder: tempfile::TempDir,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl TestServer {
    async fn start() -> Self {
        let server = Self::start_in(tempfile::tempdir().unwrap()).await;
        server
            .client
            .create_bucket()
            .bucket(BUCKET)
            .send()
            .await
            .unwrap();
        server
    }

    async fn start_in(folder: tempfile::TempDir) -> Self {
        let store = EmbeddedS3::open(folder.path()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let credentials = Credentials {
            access_key_id: "test-key".to_owned(),
            secret_access_key: "test-secret".to_owned(),
        };
        let (shutdown, stopped) = oneshot::channel();
        let task = tokio::spawn(store.serve(listener, credentials, async {
            let _ = stopped.await;
        }));
        let client = client_for(&endpoint, "test-secret");
        Self {
            client,
            endpoint,
            folder,
            shutdown,
            task,
        }
    }

    async fn stop(self) -> tempfile::TempDir {
        self.shutdown.send(()).unwrap();
        self.task.await.unwrap();
        self.folder
    }

    async fn restart(self) -> Self {
        Self::start_in(self.stop().await).await
    }

    async fn put(&self, key: &str, body: &[u8]) {
        let body = ByteStream::from(body.to_vec());
        let put = self.client.put_object().bucket(BUCKET).key(key).body(body);
        put.send().await.unwrap();
    }

    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        let answer = self
            .client
            .get_object()
            .bucket(BUCKET)
            .key(key)
            .send()
            .await;
        match answer {
            Ok(object) => Some(object.body.collect().await.unwrap().to_vec()),
            Err(error) => {
                assert_eq!(code_of(&error), "NoSuchKey");
                None
            }
        }
    }

    async fn keys(&self, prefix: &str) -> Vec<String> {
        let pages = self
            .client
            .list_objects_v2()
            .bucket(BUCKET)
            .prefix(prefix)
            .into_paginator();
        let pages: Vec<_> = pages.send().try_collect().await.unwrap();
        let objects = pages.iter().flat_map(|page| page.contents());
        objects
            .map(|object| object.key().unwrap().to_owned())
            .collect()
    }

    async fn presigned_get(&self, key: &str) -> String {
        let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
        let request = self.client.get_object().bucket(BUCKET).key(key);
        request.presigned(lifetime).await.unwrap().uri().to_owned()
    }

    async fn start_upload(&self, key: &str) -> String {
        let upload = self
            .client
            .create_multipart_upload()
            .bucket(BUCKET)
            .key(key)
            .content_type("text/csv");
        upload.send().await.unwrap().upload_id().unwrap().to_owned()
    }

    async fn upload_part(
        &self,
        key: &str,
        upload_id: &str,
        number: i32,
        body: Vec<u8>,
    ) -> CompletedPart {
        let part = self
            .client
            .upload_part()
            .bucket(BUCKET)
            .key(key)
            .upload_id(upload_id);
        let part = part
            .part_number(number)
            .body(ByteStream::from(body))
            .send()
            .await
            .unwrap();
        CompletedPart::builder()
            .part_number(number)
            .e_tag(part.e_tag().unwrap())
            .build()
    }

    async fn complete(
        &self,
        key: &str,
        upload_id: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<String, String> {
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts))
            .build();
        let complete = self
            .client
            .complete_multipart_upload()
            .bucket(BUCKET)
            .key(key);
        let answer = complete
            .upload_id(upload_id)
            .multipart_upload(parts)
            .send()
            .await;
        answer
            .map(|done| done.e_tag().unwrap().to_owned())
            .map_err(|error| code_of(&error))
    }

    /// All files below a folder of the store.
    fn files(&self, below: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        collect_files(&self.folder.path().join(below), &mut found);
        found
    }
}

fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn client_for(endpoint: &str, secret: &str) -> Client {
    let credentials = aws_sdk_s3::config::Credentials::new("test-key", secret, None, None, "test");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version_latest()
        .region(aws_sdk_s3::config::Region::new("us-east-1"))
        .credentials_provider(credentials)
        .endpoint_url(endpoint)
        .force_path_style(true)
        .retry_config(aws_sdk_s3::config::retry::RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

fn code_of<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> String {
    error.code().unwrap_or("none").to_owned()
}

fn status_of<E>(error: &SdkError<E>) -> u16 {
    error.raw_response().unwrap().status().as_u16()
}

/// Waits for something the server does on its own, such as cleaning up after a lost connection.
async fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "did not happen within 5 s"
        );
        tick.tick().await;
    }
}
