//! The address policy: no special address is open, however it is spelt or wrapped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cellblock::ingest::address;

pub fn check(input: &[u8]) {
    if let Ok(octets) = <[u8; 4]>::try_from(input) {
        return check_address(octets.into());
    }
    if let Ok(octets) = <[u8; 16]>::try_from(input) {
        return check_address(octets.into());
    }
    // As text, as a URL would have it.
    let text = format!("http://{}/", String::from_utf8_lossy(input));
    let parsed = url::Url::parse(&text).ok();
    match parsed.as_ref().and_then(url::Url::host) {
        Some(url::Host::Ipv4(ip)) => check_address(ip.into()),
        Some(url::Host::Ipv6(ip)) => check_address(ip.into()),
        Some(url::Host::Domain(_)) | None => {}
    }
}

fn check_address(ip: IpAddr) {
    let open = address::may_fetch_public(ip);
    match ip {
        IpAddr::V4(ip) => check_v4(ip, open),
        IpAddr::V6(ip) => check_v6(ip, open),
    }
    if address::may_fetch_public_or_private(ip) {
        let link_local = match ip.to_canonical() {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified() || ip.is_multicast(),
            IpAddr::V6(ip) => {
                ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()
            }
        };
        assert!(!link_local, "{ip}");
    }
}

fn check_v4(ip: Ipv4Addr, open: bool) {
    assert!(!(open && is_surely_closed(ip)), "{ip}");
    let mapped = IpAddr::V6(ip.to_ipv6_mapped());
    assert_eq!(address::may_fetch_public(mapped), open, "{mapped}");
    let [a, b, c, d] = ip.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    for wrapped in [
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 0),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
    ] {
        assert!(!address::may_fetch_public(wrapped.into()), "{wrapped}");
    }
}

fn check_v6(ip: Ipv6Addr, open: bool) {
    let closed = ip.is_loopback()
        || ip.is_unspecified()
        || ip.is_multicast()
        || ip.is_unique_local()
        || ip.is_unicast_link_local();
    assert!(!(open && closed), "{ip}");
    let global = ip.segments()[0] & 0xe000 == 0x2000 || ip.to_ipv4_mapped().is_some();
    assert!(!open || global, "{ip}");
}

/// What the standard library says of an address, where it has something to say.
fn is_surely_closed(ip: Ipv4Addr) -> bool {
    ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast()
        || ip.is_unspecified()
        || ip.octets()[0] == 0
        || ip.octets()[0] >= 240
}
