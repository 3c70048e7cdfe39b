//! Serves the S3 operations over HTTP/1.1, with headers for browsers.
//! Never hands a request to s3s that could use much memory before its signature is checked.
//! Invariant: every answer says `nosniff`, and shutdown takes at most `SHUTDOWN_LIMIT`.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use s3s::auth::SimpleAuth;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3Error, s3_error};
use tokio::net::TcpListener;

use super::Credentials;
use super::operations::S3Operations;
use crate::http_server;

const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// 1000 keys of 1024 bytes, each byte escaped, and some room.
const MAX_XML_BYTES: usize = 8 * 1024 * 1024;

pub(super) async fn serve(
    operations: S3Operations,
    listener: TcpListener,
    credentials: &Credentials,
    shutdown: impl Future<Output = ()> + Send,
) {
    let service = build_service(operations, credentials);
    let service = service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(answer(&service, request).await) }
    });
    http_server::serve(listener, service, SHUTDOWN_LIMIT, shutdown).await;
}

fn build_service(operations: S3Operations, credentials: &Credentials) -> S3Service {
    let mut config = S3Config::default();
    config.xml_max_body_size = MAX_XML_BYTES;
    let mut builder = S3ServiceBuilder::new(operations);
    builder.set_auth(SimpleAuth::from_single(
        credentials.access_key_id.clone(),
        credentials.secret_access_key.clone(),
    ));
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.build()
}

async fn answer(service: &S3Service, request: Request<Incoming>) -> Response<Body> {
    let is_presigned_read = is_presigned_read(&request);
    let mut response = match refusal(&request) {
        Some(error) => error_response(error),
        None if request.method() == Method::OPTIONS => preflight_response(request.headers()),
        None => match service.call(request.map(Body::from)).await {
            Ok(response) => response,
            Err(_) => error_response(s3_error!(InternalError)),
        },
    };
    add_safety_headers(response.headers_mut());
    if is_presigned_read {
        add_cors_headers(response.headers_mut());
    }
    response
}

/// What s3s would accept but this server does not: old signatures, and HTML forms, which s3s reads before it checks who sends them.
fn refusal<B>(request: &Request<B>) -> Option<S3Error> {
    let authorization = request.headers().get(header::AUTHORIZATION);
    let query = request.uri().query().unwrap_or_default();
    let is_signature_v2 = authorization.is_some_and(|value| value.as_bytes().starts_with(b"AWS "))
        || query.split('&').any(|pair| pair.starts_with("Signature="));
    if is_signature_v2 {
        return Some(s3_error!(
            AccessDenied,
            "signature version 2 is not accepted"
        ));
    }
    let mut content_types = request.headers().get_all(header::CONTENT_TYPE).iter();
    let is_form = content_types.any(|value| {
        let value = value.as_bytes().trim_ascii_start().to_ascii_lowercase();
        value.starts_with(b"multipart/")
    });
    if is_form && request.method() == Method::POST {
        return Some(s3_error!(
            NotImplemented,
            "uploads by HTML form are not supported"
        ));
    }
    None
}

fn is_presigned_read<B>(request: &Request<B>) -> bool {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let query = request.uri().query().unwrap_or_default();
    is_read
        && query
            .split('&')
            .any(|pair| pair.starts_with("X-Amz-Signature="))
}

/// Web pages of other origins may read what they hold a presigned link for, and do nothing else.
fn preflight_response(headers: &HeaderMap) -> Response<Body> {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD);
    let is_read = asked.is_some_and(|method| method == "GET" || method == "HEAD");
    if !is_read {
        return error_response(s3_error!(AccessDenied, "other origins may only read"));
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    add_cors_headers(headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "range, if-match, if-none-match, if-modified-since, if-unmodified-since, cache-control",
        ),
    );
    headers.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("3600"),
    );
    response
}

fn add_cors_headers(headers: &mut HeaderMap) {
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        HeaderValue::from_static("*"),
    );
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("etag, content-length, content-range, content-disposition, accept-ranges, last-modified"),
    );
}

/// Objects are made by code nobody vouches for: a browser must not guess types, and a page among them
/// must not act as this host's origin, whose cookies it would share with other ports.
fn add_safety_headers(headers: &mut HeaderMap) {
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let is_active = content_type.is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("html") || value.contains("xml") || value.contains("svg")
    });
    if is_active {
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(
                "sandbox allow-scripts allow-popups allow-forms allow-modals allow-downloads",
            ),
        );
    }
}

fn error_response(error: S3Error) -> Response<Body> {
    let status = error
        .status_code()
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        response
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    #[test]
    fn old_signatures_and_forms_are_refused_before_anything_is_read() {
        assert!(
            refusal(&request(
                Method::GET,
                "/b/k?AWSAccessKeyId=a&Signature=x",
                &[]
            ))
            .is_some()
        );
        assert!(
            refusal(&request(
                Method::GET,
                "/b/k",
                &[("authorization", "AWS key:signature")]
            ))
            .is_some()
        );
        let form = [("content-type", "Multipart/form-data; boundary=x")];
        assert!(refusal(&request(Method::POST, "/b", &form)).is_some());
        let signed = [("authorization", "AWS4-HMAC-SHA256 Credential=…")];
        assert!(refusal(&request(Method::GET, "/b/k?X-Amz-Signature=x", &signed)).is_none());
    }

    #[test]
    fn only_reads_with_a_presigned_url_are_open_to_other_origins() {
        let presigned = "/b/k?X-Amz-Signature=x";
        assert!(is_presigned_read(&request(Method::GET, presigned, &[])));
        assert!(!is_presigned_read(&request(Method::PUT, presigned, &[])));
        assert!(!is_presigned_read(&request(
            Method::GET,
            "/b/k?prefix=X-Amz-Signature=",
            &[]
        )));
    }

    #[test]
    fn pages_and_drawings_are_put_in_a_browser_sandbox_and_pictures_are_not() {
        let policy_for = |content_type: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            add_safety_headers(&mut headers);
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            headers.get(header::CONTENT_SECURITY_POLICY).cloned()
        };
        assert!(policy_for("text/html; charset=utf-8").is_some());
        assert!(policy_for("image/svg+xml").is_some());
        assert!(policy_for("image/png").is_none());
        assert!(policy_for("application/pdf").is_none());
    }
}
