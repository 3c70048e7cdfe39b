//! Operations on buckets: create, find, list, delete.
//! Never deletes a bucket that holds objects.
//! Invariant: creating a bucket that is there succeeds, as all buckets belong to the one owner.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3Response, S3Result};

use super::super::error::{StoreError, blocking};
use super::{Answer, S3Operations};

impl S3Operations {
    pub(super) async fn create_bucket_if_missing(
        &self,
        input: CreateBucketInput,
    ) -> Answer<CreateBucketOutput> {
        let store = Arc::clone(&self.store);
        let location = format!("/{}", input.bucket);
        blocking(move || store.create_bucket(&input.bucket)).await?;
        Ok(S3Response::new(CreateBucketOutput {
            location: Some(location),
        }))
    }

    pub(super) async fn find_bucket(&self, bucket: String) -> S3Result<()> {
        let store = Arc::clone(&self.store);
        blocking(move || store.bucket(&bucket)).await?;
        Ok(())
    }

    pub(super) async fn all_buckets(&self, input: ListBucketsInput) -> Answer<ListBucketsOutput> {
        let store = Arc::clone(&self.store);
        let prefix = input.prefix.unwrap_or_default();
        let buckets = blocking(move || {
            let mut names = store.bucket_names()?;
            names.retain(|name| name.starts_with(&prefix));
            let buckets = names.into_iter().map(|name| {
                let metadata = store.bucket(&name)?.metadata()?;
                let created = metadata.created().or_else(|_| metadata.modified())?;
                Ok(Bucket {
                    creation_date: Some(created.into()),
                    name: Some(name),
                    ..Bucket::default()
                })
            });
            buckets.collect::<Result<Vec<_>, StoreError>>()
        });
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(buckets.await?),
            ..ListBucketsOutput::default()
        }))
    }

    pub(super) async fn delete_empty_bucket(
        &self,
        input: DeleteBucketInput,
    ) -> Answer<DeleteBucketOutput> {
        let store = Arc::clone(&self.store);
        blocking(move || store.delete_bucket(&input.bucket)).await?;
        Ok(S3Response::new(DeleteBucketOutput {}))
    }
}
