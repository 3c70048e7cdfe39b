//! Who may call: the holder of the key, or, where there is no key, programs on this machine.
//! Never reads a body. Invariant: without the right key no handler and no body reader runs.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::Shared;
use super::problem::Problem;

pub async fn require_key(
    State(state): State<Shared>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    match &state.settings.api_key {
        Some(key) => check_key(request.headers(), key)?,
        None => check_local(&request)?,
    }
    Ok(next.run(request).await)
}

fn check_key(headers: &HeaderMap, key: &str) -> Result<(), Problem> {
    let refuse = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
    let mut given = headers
        .get_all("x-api-key")
        .iter()
        .map(|value| value.as_bytes())
        .chain(
            headers
                .get_all(header::AUTHORIZATION)
                .iter()
                .filter_map(|value| bearer(value.as_bytes())),
        );
    let Some(first) = given.next() else {
        return Err(refuse("no key: send X-API-Key or Authorization: Bearer"));
    };
    if given.next().is_some() {
        return Err(refuse("more than one key: send exactly one"));
    }
    if bool::from(first.ct_eq(key.as_bytes())) {
        Ok(())
    } else {
        Err(refuse("the key is wrong"))
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// No key: the service listens on loopback only. A web page that a local browser shows must not reach it, neither
/// by its own origin nor by a name that it points at 127.0.0.1.
fn check_local(request: &Request) -> Result<(), Problem> {
    let refuse = |detail: &str| Err(Problem::new(StatusCode::FORBIDDEN, "unauthorized", detail));
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.or_else(|| {
        request
            .uri()
            .authority()
            .map(|authority| authority.as_str())
    });
    if !host.is_some_and(is_local_host) {
        return refuse(
            "without SANDBOX_API_KEY only requests for localhost are served; set a key to use other names",
        );
    }
    let origin = request.headers().get(header::ORIGIN);
    let local_origin = |origin: &str| {
        origin
            .split_once("://")
            .is_some_and(|(_, host)| is_local_host(host))
    };
    if !origin.is_none_or(|origin| origin.to_str().is_ok_and(local_origin)) {
        return refuse("without SANDBOX_API_KEY requests from other origins are not served");
    }
    Ok(())
}

fn is_local_host(authority: &str) -> bool {
    let port_is_number = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port_is_number(port) => host,
        _ => authority,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn only_exactly_one_right_key_opens() {
        for good in [
            &[("x-api-key", "k1")][..],
            &[("authorization", "Bearer k1")],
            &[("authorization", "bearer k1")],
        ] {
            assert!(check_key(&headers(good), "k1").is_ok(), "{good:?}");
        }
        for bad in [
            &[][..],
            &[("x-api-key", "")],
            &[("x-api-key", "k")],
            &[("x-api-key", "k11")],
            &[("authorization", "k1")],
            &[("authorization", "Basic k1")],
            &[("x-api-key", "k1"), ("x-api-key", "k1")],
            &[("x-api-key", "k1"), ("authorization", "Bearer k1")],
        ] {
            assert!(check_key(&headers(bad), "k1").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_that_a_web_page_could_rebind_are_not_local() {
        for good in [
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:8000",
            "127.0.0.1",
            "[::1]:8000",
            "[::1]",
        ] {
            assert!(is_local_host(good), "{good}");
        }
        for bad in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8000",
            "",
            "0.0.0.0:8000",
            "10.0.0.1",
        ] {
            assert!(!is_local_host(bad), "{bad}");
        }
    }
}
