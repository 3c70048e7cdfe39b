//! Uploads with nothing but `aws-sdk-s3`, to the embedded store of a running service: what a sync is measured against.
//! Never hashes for itself, keeps no manifest. Invariant: default settings of the SDK.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::primitives::{ByteStream, Length};
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use futures_util::{StreamExt, stream};

use crate::own::Service;
use crate::work::timed;

const BUCKET: &str = "sandbox";
const PART_BYTES: u64 = 8 << 20;
const PARTS_AT_ONCE: usize = 4;
const FILES_AT_ONCE: usize = 16;

pub struct PlainSdk {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl PlainSdk {
    pub fn of(service: &Service) -> Self {
        let credentials = std::fs::read_to_string(service.work_root.join("s3-credentials"));
        let credentials = credentials.unwrap();
        let (id, secret) = credentials.trim().split_once(':').unwrap();
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(format!("http://{}", service.s3_address))
            .credentials_provider(Credentials::new(id, secret, None, None, "bench"))
            .region(Region::new("us-east-1"))
            .force_path_style(true)
            .build();
        Self {
            runtime: tokio::runtime::Runtime::new().unwrap(),
            client: Client::from_conf(config),
        }
    }

    pub fn put(&self, key: &str, bytes: Vec<u8>) -> Duration {
        timed(|| self.runtime.block_on(self.put_one(key.to_owned(), bytes)))
    }

    /// So many different objects of that size, several at a time.
    pub fn put_many(&self, prefix: &str, contents: Vec<Vec<u8>>) -> Duration {
        let puts = contents
            .into_iter()
            .enumerate()
            .map(|(number, bytes)| self.put_one(format!("{prefix}/{number}"), bytes));
        let all = stream::iter(puts).buffer_unordered(FILES_AT_ONCE);
        timed(|| self.runtime.block_on(all.for_each(|()| async {})))
    }

    async fn put_one(&self, key: String, bytes: Vec<u8>) {
        let put = self.client.put_object().bucket(BUCKET).key(key);
        put.body(ByteStream::from(bytes)).send().await.unwrap();
    }

    pub fn upload_in_parts(&self, key: &str, path: &Path) -> Duration {
        timed(|| self.runtime.block_on(self.multipart(key, path)))
    }

    async fn multipart(&self, key: &str, path: &Path) {
        let begin = self.client.create_multipart_upload();
        let begun = begin.bucket(BUCKET).key(key).send().await.unwrap();
        let upload_id = begun.upload_id().unwrap();
        let size = std::fs::metadata(path).unwrap().len();
        let parts = (0..size.div_ceil(PART_BYTES))
            .map(|index| self.part(key, upload_id, path.to_owned(), index, size));
        let mut parts: Vec<CompletedPart> = stream::iter(parts)
            .buffer_unordered(PARTS_AT_ONCE)
            .collect()
            .await;
        parts.sort_by_key(CompletedPart::part_number);
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts));
        let complete = self.client.complete_multipart_upload();
        let complete = complete.bucket(BUCKET).key(key).upload_id(upload_id);
        let sent = complete.multipart_upload(parts.build()).send().await;
        sent.unwrap();
    }

    async fn part(
        &self,
        key: &str,
        upload_id: &str,
        path: PathBuf,
        index: u64,
        size: u64,
    ) -> CompletedPart {
        let offset = index * PART_BYTES;
        let body = ByteStream::read_from().path(path).offset(offset);
        let length = Length::Exact(PART_BYTES.min(size - offset));
        let body = body.length(length).build().await.unwrap();
        let number = index as i32 + 1;
        let part = self.client.upload_part().bucket(BUCKET).key(key);
        let part = part.upload_id(upload_id).part_number(number);
        let sent = part.body(body).send().await.unwrap();
        let part = CompletedPart::builder().part_number(number);
        part.set_e_tag(sent.e_tag().map(str::to_owned)).build()
    }

    pub fn delete(&self, key: &str) {
        let delete = self.client.delete_object().bucket(BUCKET).key(key).send();
        self.runtime.block_on(delete).unwrap();
    }
}
