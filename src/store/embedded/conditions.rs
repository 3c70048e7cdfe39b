//! Preconditions of requests (`If-Match`, `If-None-Match`, `If-Modified-Since`, …) as pure decisions.
//! Never reads an object; the store calls it with what it found while it holds the key's lock.
//! Invariant: follows RFC 9110 §13.2.2 for reads and what S3 documents for conditional writes.

use s3s::dto::{ETagCondition, Timestamp};
use time::OffsetDateTime;

use super::error::StoreError;
use super::object_file::ObjectRecord;

/// What must hold of the present object for a write or delete to go on.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteCondition {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
}

impl WriteCondition {
    pub(super) fn is_unconditional(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    pub(super) fn check(&self, present: Option<&ObjectRecord>) -> Result<(), StoreError> {
        if let Some(condition) = &self.if_match {
            let record = present.ok_or(StoreError::NoSuchKey)?;
            if !matches_etag(condition, record) {
                return Err(StoreError::PreconditionFailed);
            }
        }
        if let (Some(condition), Some(record)) = (&self.if_none_match, present)
            && matches_etag(condition, record)
        {
            return Err(StoreError::PreconditionFailed);
        }
        Ok(())
    }
}

/// What a reader asks of the present object.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadCondition {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadDecision {
    Proceed,
    NotModified,
    PreconditionFailed,
}

impl ReadCondition {
    pub(super) fn decide(&self, record: &ObjectRecord) -> ReadDecision {
        let may_go_on = match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) => matches_etag(condition, record),
            (None, Some(time)) => last_modified_secs(record) <= unix_secs(time),
            (None, None) => true,
        };
        if !may_go_on {
            return ReadDecision::PreconditionFailed;
        }
        let is_known = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => matches_etag(condition, record),
            (None, Some(time)) => last_modified_secs(record) <= unix_secs(time),
            (None, None) => false,
        };
        if is_known {
            ReadDecision::NotModified
        } else {
            ReadDecision::Proceed
        }
    }
}

fn matches_etag(condition: &ETagCondition, record: &ObjectRecord) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(etag) => etag.value() == record.etag,
    }
}

/// HTTP dates have whole seconds, so only those are compared.
fn last_modified_secs(record: &ObjectRecord) -> i64 {
    record.last_modified_unix_ms.div_euclid(1000)
}

fn unix_secs(time: &Timestamp) -> i64 {
    OffsetDateTime::from(time.clone()).unix_timestamp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::dto::ETag;

    fn record() -> ObjectRecord {
        ObjectRecord {
            etag: "abc".to_owned(),
            last_modified_unix_ms: 1_000_500,
            ..ObjectRecord::default()
        }
    }

    fn etag(value: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(value.to_owned())))
    }

    fn at(unix_secs: i64) -> Option<Timestamp> {
        Some(
            OffsetDateTime::from_unix_timestamp(unix_secs)
                .unwrap()
                .into(),
        )
    }

    #[test]
    fn a_create_only_write_is_refused_where_an_object_is() {
        let condition = WriteCondition {
            if_none_match: Some(ETagCondition::Any),
            ..WriteCondition::default()
        };
        assert!(condition.check(None).is_ok());
        assert!(matches!(
            condition.check(Some(&record())),
            Err(StoreError::PreconditionFailed)
        ));
    }

    #[test]
    fn a_replace_only_write_needs_the_very_object() {
        let condition = |value| WriteCondition {
            if_match: etag(value),
            ..WriteCondition::default()
        };
        assert!(condition("abc").check(Some(&record())).is_ok());
        assert!(matches!(
            condition("x").check(Some(&record())),
            Err(StoreError::PreconditionFailed)
        ));
        assert!(matches!(
            condition("abc").check(None),
            Err(StoreError::NoSuchKey)
        ));
    }

    #[test]
    fn etags_come_before_dates_in_reads() {
        let known = ReadCondition {
            if_none_match: etag("abc"),
            if_modified_since: at(0),
            ..ReadCondition::default()
        };
        assert_eq!(known.decide(&record()), ReadDecision::NotModified);
        let changed = ReadCondition {
            if_none_match: etag("old"),
            if_modified_since: at(5000),
            ..ReadCondition::default()
        };
        assert_eq!(changed.decide(&record()), ReadDecision::Proceed);
        let other = ReadCondition {
            if_match: etag("other"),
            ..ReadCondition::default()
        };
        assert_eq!(other.decide(&record()), ReadDecision::PreconditionFailed);
    }

    #[test]
    fn dates_are_compared_in_whole_seconds() {
        let since = |secs| ReadCondition {
            if_modified_since: at(secs),
            ..ReadCondition::default()
        };
        assert_eq!(since(1000).decide(&record()), ReadDecision::NotModified);
        assert_eq!(since(999).decide(&record()), ReadDecision::Proceed);
        let unmodified = ReadCondition {
            if_unmodified_since: at(999),
            ..ReadCondition::default()
        };
        assert_eq!(
            unmodified.decide(&record()),
            ReadDecision::PreconditionFailed
        );
    }
}
