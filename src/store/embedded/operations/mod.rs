//! The S3 operations this server knows; s3s parses requests, checks signatures and writes the XML.
//! Never holds logic: every operation is handed to the file that does it. All others answer `NotImplemented`.
//! Invariant: anything that touches the disk runs on the blocking pool.

mod buckets;
mod copying;
mod lists;
mod reading;
mod uploads;
mod writing;

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use time::OffsetDateTime;

use super::object_file::ObjectRecord;
use super::object_store::ObjectStore;

#[derive(Debug, Clone)]
pub(super) struct S3Operations {
    pub(super) store: Arc<ObjectStore>,
}

type Answer<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for S3Operations {
    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> Answer<CreateBucketOutput> {
        self.create_bucket_if_missing(request.input).await
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.find_bucket(request.input.bucket).await?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> Answer<GetBucketLocationOutput> {
        self.find_bucket(request.input.bucket).await?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> Answer<ListBucketsOutput> {
        self.all_buckets(request.input).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> Answer<DeleteBucketOutput> {
        self.delete_empty_bucket(request.input).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.write_object(request).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        self.duplicate_object(request.input).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.read_object(request.input).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.describe_object(request.input).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> Answer<DeleteObjectOutput> {
        self.remove_object(request.input).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> Answer<DeleteObjectsOutput> {
        self.remove_objects(request.input).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> Answer<ListObjectsOutput> {
        self.list_by_marker(request.input).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> Answer<ListObjectsV2Output> {
        self.list_by_token(request.input).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        self.start_upload(request.input).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.write_part(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        self.finish_upload(request.input).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.give_up_upload(request.input).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        self.list_parts_of_upload(request.input).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.list_uploads(request.input).await
    }
}

fn etag_of(record: &ObjectRecord) -> ETag {
    ETag::Strong(record.etag.clone())
}

fn last_modified_of(record: &ObjectRecord) -> Timestamp {
    let nanoseconds = i128::from(record.last_modified_unix_ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .into()
}

/// Sizes are at most a few TiB, so the signed type S3's model uses always holds them.
fn signed_bytes(size_bytes: u64) -> i64 {
    i64::try_from(size_bytes).unwrap_or(i64::MAX)
}
