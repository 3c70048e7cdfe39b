//! `GET /v1/files/download`: the bytes of a workspace file, whole or a range of them.
//! Never lets a browser render what a sandbox made. Invariant: the length that is promised is the length that is sent.

use std::io::SeekFrom;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use crate::api::Shared;
use crate::api::input::{QueryOf, session_ids, workspace_path};
use crate::api::problem::Problem;
use crate::session::CoreError;
use crate::store::attachment_header;

#[derive(Deserialize)]
pub struct DownloadQuery {
    user_id: String,
    session_id: String,
    path: String,
}

pub async fn download(
    State(state): State<Shared>,
    headers: HeaderMap,
    QueryOf(query): QueryOf<DownloadQuery>,
) -> Result<Response, Problem> {
    let ids = session_ids(&query.user_id, &query.session_id)?;
    let path = workspace_path("path", &query.path)?;
    let download = state.core.open_download(&ids, &path).await?;
    let size = download.opened.facts.size_bytes;
    let range = headers
        .get(header::RANGE)
        .and_then(|value| value.to_str().ok());
    let (start, length, status) = match requested_range(range, size) {
        Requested::Whole => (0, size, StatusCode::OK),
        Requested::Part { start, length } => (start, length, StatusCode::PARTIAL_CONTENT),
        Requested::OutOfReach => {
            let problem = Problem::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "invalid_argument",
                format!("Range: the file has {size} bytes"),
            );
            let mut response = problem.with("field", "Range").into_response();
            response.headers_mut().insert(
                header::CONTENT_RANGE,
                header_value(&format!("bytes */{size}")),
            );
            return Ok(response);
        }
    };
    let mut file = tokio::fs::File::from_std(download.opened.file);
    file.seek(SeekFrom::Start(start))
        .await
        .map_err(CoreError::workspace)?;
    let mut response =
        Body::from_stream(ReaderStream::with_capacity(file.take(length), 64 << 10)).into_response();
    *response.status_mut() = status;
    let answer = response.headers_mut();
    answer.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    answer.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer.insert(
        header::CONTENT_DISPOSITION,
        header_value(&attachment_header(path.file_name())),
    );
    if status == StatusCode::PARTIAL_CONTENT {
        let end = start + length - 1;
        answer.insert(
            header::CONTENT_RANGE,
            header_value(&format!("bytes {start}-{end}/{size}")),
        );
    }
    Ok(response)
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[derive(Debug, PartialEq, Eq)]
enum Requested {
    Whole,
    Part { start: u64, length: u64 },
    OutOfReach,
}

/// One range, as RFC 9110 has it. Several ranges and nonsense mean the whole file, as the RFC allows.
fn requested_range(header: Option<&str>, size: u64) -> Requested {
    let Some((first, last)) = header
        .and_then(|text| text.strip_prefix("bytes="))
        .and_then(|spec| spec.split_once('-'))
    else {
        return Requested::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), Ok(end)) if start <= end => (start, end.saturating_add(1).min(size)),
        (Ok(start), Err(_)) if last.is_empty() => (start, size),
        (Err(_), Ok(0)) if first.is_empty() => return Requested::OutOfReach,
        (Err(_), Ok(suffix)) if first.is_empty() => (size.saturating_sub(suffix), size),
        _ => return Requested::Whole,
    };
    if start >= size {
        Requested::OutOfReach
    } else {
        Requested::Part {
            start,
            length: end - start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        let part = |start, length| Requested::Part { start, length };
        for (text, expected) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-", part(2, 8)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=5-100", part(5, 5)),
            ("bytes=10-", Requested::OutOfReach),
            ("bytes=-0", Requested::OutOfReach),
            ("bytes=3-2", Requested::Whole),
            ("bytes=0-1,3-4", Requested::Whole),
            ("bytes=a-b", Requested::Whole),
            ("lines=1-2", Requested::Whole),
            ("bytes=0-18446744073709551615", part(0, 10)),
        ] {
            assert_eq!(requested_range(Some(text), 10), expected, "{text}");
        }
        assert_eq!(requested_range(Some("bytes=0-0"), 0), Requested::OutOfReach);
        assert_eq!(requested_range(None, 10), Requested::Whole);
    }
}
