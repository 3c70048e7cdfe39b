//! A URL that passed every check that needs no network: scheme, credentials, host and port.
//! It never resolves a name and never judges an address.
//! Invariant: `host` was read from the same normalised `url` that the request is made from.

use std::net::IpAddr;

use url::{Host, Url};

/// Long enough for presigned URLs with session tokens.
const MAX_URL_BYTES: usize = 16 * 1024;
const MAX_HOST_BYTES: usize = 253;

#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) url: Url,
    pub(super) host: TargetHost,
    pub(super) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetHost {
    Address(IpAddr),
    Name(String),
}

impl Target {
    /// The error says what is wrong, in words that fit behind "the URL is not valid:".
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_URL_BYTES {
            return Err("it is too long");
        }
        Self::check(Url::parse(text).map_err(|_| "it cannot be parsed")?)
    }

    /// A `Location` header, relative to this URL. Header bytes that are not UTF-8 end up percent-encoded.
    pub(super) fn redirect(&self, location: &[u8]) -> Result<Self, &'static str> {
        if location.len() > MAX_URL_BYTES {
            return Err("it is too long");
        }
        let location = String::from_utf8_lossy(location);
        Self::check(
            self.url
                .join(&location)
                .map_err(|_| "it cannot be parsed")?,
        )
    }

    /// The host in a form for messages.
    pub(super) fn host_text(&self) -> String {
        match &self.host {
            TargetHost::Address(ip) => ip.to_string(),
            TargetHost::Name(name) => name.clone(),
        }
    }

    fn check(mut url: Url) -> Result<Self, &'static str> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err("only http and https can be fetched");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it carries a user name or a password");
        }
        url.set_fragment(None);
        drop_trailing_dot(&mut url)?;
        let host = match url.host().ok_or("it has no host")? {
            Host::Ipv4(ip) => TargetHost::Address(ip.into()),
            Host::Ipv6(ip) => TargetHost::Address(ip.into()),
            Host::Domain(name) => TargetHost::Name(checked_name(name)?),
        };
        match url.port_or_known_default() {
            Some(port) if port != 0 => Ok(Self { url, host, port }),
            _ => Err("port 0 cannot be connected to"),
        }
    }
}

/// `example.com.` and `example.com` are one host; certificates and virtual hosts only know the second.
fn drop_trailing_dot(url: &mut Url) -> Result<(), &'static str> {
    let Some(Host::Domain(name)) = url.host() else {
        return Ok(());
    };
    let Some(shorter) = name.strip_suffix('.').map(str::to_owned) else {
        return Ok(());
    };
    // `127.0.0.1..` is a name, but would turn into an address here.
    if shorter.ends_with('.') {
        return Err("its host is not a valid name");
    }
    url.set_host(Some(&shorter))
        .map_err(|_| "its host is not a valid name")
}

fn checked_name(name: &str) -> Result<String, &'static str> {
    if name.len() > MAX_HOST_BYTES {
        return Err("its host is too long");
    }
    if name.split('.').any(str::is_empty) {
        return Err("its host is not a valid name");
    }
    // The HTTP client connects straight to anything that it can read as an address.
    if name.parse::<IpAddr>().is_ok() {
        return Err("its host is not a valid name");
    }
    Ok(name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(text: &str) -> String {
        Target::parse(text).unwrap().host_text()
    }

    #[test]
    fn hosts_are_normalised_before_they_are_looked_at() {
        assert_eq!(name_of("HTTP://ExAmPlE.COM/x"), "example.com");
        assert_eq!(name_of("http://example.com./x"), "example.com");
        assert_eq!(name_of("http://bücher.example/"), "xn--bcher-kva.example");
        assert_eq!(name_of("  http://example.com\t/\n"), "example.com");
        assert_eq!(
            Target::parse("http://example.com./x").unwrap().url.as_str(),
            "http://example.com/x"
        );
        assert_eq!(
            Target::parse("http://0x7f.1./").unwrap().host,
            TargetHost::Address([127, 0, 0, 1].into())
        );
    }

    #[test]
    fn what_is_not_a_plain_http_url_is_refused() {
        let urls = [
            "",
            "example.com",
            "//example.com",
            "file:///etc/passwd",
            "gopher://example.com/",
            "ftp://example.com/",
            "data:text/plain,x",
            "javascript:alert(1)",
            "ws://example.com/",
            "unix:/run/docker.sock",
            "http://",
            "http://user@example.com/",
            "http://user:secret@example.com/",
            "http://:secret@example.com/",
            "http://example.com:0/",
            "http://example.com:65536/",
            "http://exa mple.com/",
            "http://a..b/",
            "http://example.com../",
            "http://127.0.0.1../",
            "http://./",
            "http://[::1",
            "http://[fe80::1%25eth0]/",
            "http://127.0.0.1:80@example.com/",
            "http://exam%00ple.com/",
        ];
        for url in urls {
            assert!(Target::parse(url).is_err(), "{url:?} is accepted");
        }
        assert!(Target::parse(&format!("http://example.com/{}", "a".repeat(20_000))).is_err());
        assert!(Target::parse(&format!("http://{}/", "a.".repeat(200) + "b")).is_err());
    }

    #[test]
    fn a_redirect_is_read_relative_to_its_url_and_checked_from_the_start() {
        let target = Target::parse("https://example.com/a/b?q=1").unwrap();
        let follow = |location: &str| {
            target
                .redirect(location.as_bytes())
                .map(|target| target.url.to_string())
        };
        assert_eq!(follow("c").unwrap(), "https://example.com/a/c");
        assert_eq!(follow("/c").unwrap(), "https://example.com/c");
        assert_eq!(
            follow("//other.example/c").unwrap(),
            "https://other.example/c"
        );
        assert_eq!(follow("/ü").unwrap(), "https://example.com/%C3%BC");
        assert!(follow("file:///etc/passwd").is_err());
        assert!(follow("https://user:secret@example.com/").is_err());
        assert_eq!(
            target.redirect(b"//2130706433/").unwrap().host,
            TargetHost::Address([127, 0, 0, 1].into())
        );
    }
}
