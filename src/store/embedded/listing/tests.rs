//! Tests of the listing against a plain model: a sorted set of keys.
//! Never goes through HTTP; the integration tests do.
//! Invariant: whatever the page size, prefix and delimiter, the pages add up to what the model says.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use s3s::checksum::ChecksumHasher;

use super::super::conditions::WriteCondition;
use super::super::object_store::ObjectStore;
use super::super::staging::StagedFile;
use super::*;

fn put_empty(store: &ObjectStore, key: &str) {
    let staged = StagedFile::create(&store.temporary, ChecksumHasher::default()).unwrap();
    let record = ObjectRecord {
        key: key.to_owned(),
        ..ObjectRecord::default()
    };
    let sealed = staged.seal(&record).unwrap();
    store
        .place("bucket", key, sealed, &WriteCondition::default())
        .unwrap();
}

fn store_with<'a>(
    keys: impl IntoIterator<Item = &'a str>,
) -> (tempfile::TempDir, Arc<ObjectStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(&Directory::open_root(folder.path()).unwrap()).unwrap();
    store.create_bucket("bucket").unwrap();
    for key in keys {
        put_empty(&store, key);
    }
    (folder, Arc::new(store))
}

/// All pages one after the other, keys and common prefixes in one sorted list.
fn list_all(
    store: &ObjectStore,
    prefix: &str,
    delimiter: Option<&str>,
    max_keys: usize,
) -> Vec<String> {
    let bucket = store.bucket("bucket").unwrap();
    let mut query = ListQuery {
        prefix: prefix.to_owned(),
        delimiter: delimiter.map(str::to_owned),
        position: Position::Start,
        max_keys,
    };
    let mut found = Vec::new();
    loop {
        let page = list(&bucket, &query).unwrap();
        assert!(page.objects.len() + page.common_prefixes.len() <= max_keys);
        let mut names: Vec<String> = page.objects.into_iter().map(|record| record.key).collect();
        names.extend(page.common_prefixes);
        names.sort_unstable();
        found.extend(names);
        match page.next {
            Some(next) => query.position = Position::from_token(&next.to_token()).unwrap(),
            None => return found,
        }
    }
}

fn expected(keys: &BTreeSet<String>, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
    let matching = keys.iter().filter(|key| key.starts_with(prefix));
    let grouped: BTreeSet<String> = matching
        .map(|key| {
            common_prefix(key, prefix, delimiter)
                .unwrap_or(key)
                .to_owned()
        })
        .collect();
    grouped.into_iter().collect()
}

fn key() -> impl Strategy<Value = String> {
    let long = Just("a".repeat(245));
    let piece = prop_oneof![4 => "[ab/!é]{1,6}", 1 => long];
    proptest::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn pages_add_up_to_the_sorted_keys(
        keys in proptest::collection::btree_set(key(), 0..12),
        prefix in prop_oneof![Just(String::new()), "[ab/!é]{1,3}", Just("a".repeat(241))],
        delimiter in prop_oneof![Just(None), Just(Some("/")), Just(Some("b"))],
        max_keys in 1..5_usize,
    ) {
        let (_folder, store) = store_with(keys.iter().map(String::as_str));
        prop_assert_eq!(list_all(&store, &prefix, delimiter, max_keys), expected(&keys, &prefix, delimiter));
    }
}

#[test]
fn a_listing_starts_behind_any_key_even_one_that_is_not_there() {
    let (_folder, store) = store_with(["a", "a/b", "a/c/d", "b"]);
    let bucket = store.bucket("bucket").unwrap();
    let after = |marker: &str| {
        let query = ListQuery {
            prefix: String::new(),
            delimiter: None,
            position: Position::AfterKey(marker.to_owned()),
            max_keys: 10,
        };
        let page = list(&bucket, &query).unwrap();
        page.objects
            .into_iter()
            .map(|record| record.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(after("a"), ["a/b", "a/c/d", "b"]);
    assert_eq!(after("a/bb"), ["a/c/d", "b"]);
    assert_eq!(after("a/c/d"), ["b"]);
    assert!(after("zzz").is_empty());
}

#[test]
fn damaged_objects_are_not_listed() {
    let (folder, store) = store_with(["good", "bad"]);
    std::fs::write(folder.path().join("buckets/bucket/o-bad"), "garbage").unwrap();
    assert_eq!(list_all(&store, "", None, 1), ["good"]);
}

#[test]
fn a_bucket_is_deleted_only_when_empty_and_with_it_its_empty_directories() {
    let (folder, store) = store_with(["deep/er/object"]);
    assert!(matches!(
        store.delete_bucket("bucket"),
        Err(StoreError::BucketNotEmpty)
    ));
    store
        .delete("bucket", "deep/er/object", &WriteCondition::default())
        .unwrap();
    assert!(store.bucket("bucket").unwrap().names().unwrap().is_empty());
    std::fs::create_dir_all(folder.path().join("buckets/bucket/d-left/d-over")).unwrap();
    store.delete_bucket("bucket").unwrap();
    assert!(matches!(
        store.bucket("bucket"),
        Err(StoreError::NoSuchBucket)
    ));
}

#[test]
fn puts_and_deletes_in_the_same_directory_do_not_get_in_each_others_way() {
    let (_folder, store) = store_with([]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..30 {
                    let key = format!("shared/deep/{thread}-{round}");
                    put_empty(store, &key);
                    store
                        .delete("bucket", &key, &WriteCondition::default())
                        .unwrap();
                }
            });
        }
    });
    assert!(list_all(&store, "", None, 10).is_empty());
    assert!(store.bucket("bucket").unwrap().names().unwrap().is_empty());
}
