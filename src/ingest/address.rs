//! Which IP addresses may be connected to: pure predicates on `IpAddr`.
//! It never resolves a name, reads a setting or opens a socket.
//! Invariant: an IPv4 address inside an IPv6 one is judged as the IPv4 address, or refused with its whole range.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// From the IANA special-purpose registry; 224/3 is multicast, reserved and broadcast together.
const NOT_PUBLIC_V4: [Ipv4Net; 14] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 3),
];

const GLOBAL_UNICAST_V6: Ipv6Net = v6([0x2000, 0, 0, 0], 3);

/// Exceptions inside 2000::/3. What lies outside it is refused as a whole: ::/96 (v4-compatible), 64:ff9b::/96 and
/// 64:ff9b:1::/48 (NAT64), 100::/64 (discard), 5f00::/16 (SRv6), fc00::/7, fe80::/10, fec0::/10, ff00::/8.
const NOT_PUBLIC_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0], 32),
    v6([0x2002, 0, 0, 0], 16),
    v6([0x3fff, 0, 0, 0], 20),
];

/// What `ALLOW_PRIVATE_URLS=1` opens. A list of what is allowed rather than of what is not, so that link-local
/// (169.254/16, fe80::/10: cloud metadata), 0/8, multicast and every tunnel prefix stay closed even then.
const PRIVATE_V4: [Ipv4Net; 5] = [
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([172, 16, 0, 0], 12),
    v4([192, 168, 0, 0], 16),
];

const PRIVATE_V6: [Ipv6Net; 2] = [
    Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128),
    v6([0xfc00, 0, 0, 0], 7),
];

/// Cloud metadata and host agents that hide inside public or private ranges: Azure's wire server, Alibaba, and the
/// IPv6 faces of AWS and Google. They hand out credentials to whoever asks, so no setting opens them.
const METADATA_V4: [Ipv4Net; 2] = [v4([168, 63, 129, 16], 32), v4([100, 100, 100, 200], 32)];
const METADATA_V6: [Ipv6Net; 2] = [
    v6([0xfd00, 0x0ec2, 0, 0], 32),
    v6([0xfd20, 0x00ce, 0, 0], 32),
];

const fn v4(octets: [u8; 4], prefix_bits: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix_bits)
}

const fn v6(first_half: [u16; 4], prefix_bits: u8) -> Ipv6Net {
    let [a, b, c, d] = first_half;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix_bits)
}

/// True for an address that anyone on the internet could mean.
pub fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&ip)),
        IpAddr::V6(ip) => {
            GLOBAL_UNICAST_V6.contains(&ip) && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&ip))
        }
    }
}

/// True for loopback, RFC 1918, carrier-grade NAT and unique local addresses.
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => PRIVATE_V4.iter().any(|net| net.contains(&ip)),
        IpAddr::V6(ip) => PRIVATE_V6.iter().any(|net| net.contains(&ip)),
    }
}

/// The address rule when private URLs are refused.
pub fn may_fetch_public(ip: IpAddr) -> bool {
    is_public(ip) && !is_metadata_service(ip)
}

/// The address rule under `ALLOW_PRIVATE_URLS=1`.
pub fn may_fetch_public_or_private(ip: IpAddr) -> bool {
    (is_public(ip) || is_private(ip)) && !is_metadata_service(ip)
}

fn is_metadata_service(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => METADATA_V4.iter().any(|net| net.contains(&ip)),
        IpAddr::V6(ip) => METADATA_V6.iter().any(|net| net.contains(&ip)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::{Host, Url};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The address that a URL means, or `None` where it means a name or is no URL.
    fn literal(url: &str) -> Option<IpAddr> {
        match Url::parse(url).ok()?.host()? {
            Host::Ipv4(ip) => Some(ip.into()),
            Host::Ipv6(ip) => Some(ip.into()),
            Host::Domain(_) => None,
        }
    }

    #[test]
    fn every_spelling_of_a_private_address_is_refused() {
        let spellings = [
            ("http://127.0.0.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://017700000001/", "127.0.0.1"),
            ("http://0x7f000001/", "127.0.0.1"),
            ("http://0x7f.0.0.1/", "127.0.0.1"),
            ("http://0177.0.0.01/", "127.0.0.1"),
            ("http://127.1/", "127.0.0.1"),
            ("http://127.0.1/", "127.0.0.1"),
            ("http://127.0.0.1./", "127.0.0.1"),
            ("http://%31%32%37.0.0.1/", "127.0.0.1"),
            ("http://127.0.0.1/", "127.0.0.1"),
            ("http://①②⑦.0.0.1/", "127.0.0.1"),
            ("http://127。0。0。1/", "127.0.0.1"),
            ("http:\\\\127.0.0.1\\", "127.0.0.1"),
            ("http:127.0.0.1", "127.0.0.1"),
            ("http://12\t7.0.\n0.1/", "127.0.0.1"),
            ("http://0/", "0.0.0.0"),
            ("http://0.0.0.0/", "0.0.0.0"),
            ("http://10.1/", "10.0.0.1"),
            ("http://0xac.16.0.1/", "172.16.0.1"),
            ("http://3232235521/", "192.168.0.1"),
            ("http://169.254.169.254/latest/", "169.254.169.254"),
            ("http://2852039166/", "169.254.169.254"),
            ("http://0251.0376.0251.0376/", "169.254.169.254"),
            ("http://0xA9FEA9FE/", "169.254.169.254"),
            ("http://255.255.255.255/", "255.255.255.255"),
            ("http://[::]/", "::"),
            ("http://[::1]/", "::1"),
            ("http://[0:0:0:0:0:0:0:1]/", "::1"),
            ("http://[::127.0.0.1]/", "::7f00:1"),
            ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1"),
            ("http://[::ffff:7f00:1]/", "::ffff:127.0.0.1"),
            ("http://[::ffff:169.254.169.254]/", "::ffff:169.254.169.254"),
            ("http://[::ffff:0:127.0.0.1]/", "::ffff:0:7f00:1"),
            ("http://[64:ff9b::127.0.0.1]/", "64:ff9b::7f00:1"),
            ("http://[64:ff9b::8.8.8.8]/", "64:ff9b::808:808"),
            ("http://[64:ff9b:1::10.0.0.1]/", "64:ff9b:1::a00:1"),
            ("http://[2002:7f00:1::]/", "2002:7f00:1::"),
            ("http://[2002:a9fe:a9fe::1]/", "2002:a9fe:a9fe::1"),
            ("http://[2001:0:4136:e378::1]/", "2001:0:4136:e378::1"),
            ("http://[fe80::1]/", "fe80::1"),
            ("http://[fec0::1]/", "fec0::1"),
            ("http://[fd00:ec2::254]/", "fd00:ec2::254"),
            ("http://[ff02::1]/", "ff02::1"),
        ];
        for (url, meant) in spellings {
            let found = literal(url).unwrap_or_else(|| panic!("{url:?} is not read as an address"));
            assert_eq!(found, ip(meant), "{url:?}");
            assert!(!is_public(found), "{url:?} counts as public");
        }
    }

    #[test]
    fn spellings_that_are_no_address_are_no_url_either() {
        let refused = [
            "http://256.0.0.1/",
            "http://1.2.3.4.5/",
            "http://0x100000000/",
            "http://[fe80::1%25eth0]/",
            "http://09.0.0.1/",
            "http://[::1",
        ];
        for url in refused {
            assert!(Url::parse(url).is_err(), "{url:?} parses");
        }
    }

    #[test]
    fn both_edges_of_every_closed_range_are_refused_and_their_neighbours_are_not() {
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::",
            "2001:200::",
            "2001:db7:ffff::",
            "2001:db9::",
            "2001:ffff::",
            "2003::",
            "2606:4700::1111",
            "3ffe::1",
            "3fff:1000::",
            "::ffff:8.8.8.8",
        ];
        let closed = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.0.2.255",
            "192.88.99.0",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "198.51.100.255",
            "203.0.113.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "1fff:ffff::",
            "2001::",
            "2001:1ff:ffff::",
            "2001:db8::",
            "2001:db8:ffff::",
            "2002::",
            "2002:ffff::",
            "3fff::",
            "3fff:fff::",
            "4000::",
            "5f00::",
            "64:ff9b::1",
            "64:ff9b:1::1",
            "100::1",
            "fc00::",
            "fdff::",
            "fe80::",
            "febf::",
            "fec0::",
            "ff00::",
            "ffff::",
            "::ffff:10.0.0.1",
        ];
        for text in public {
            assert!(is_public(ip(text)), "{text} should be public");
        }
        for text in closed {
            assert!(!is_public(ip(text)), "{text} should not be public");
        }
    }

    #[test]
    fn allowing_private_urls_keeps_link_local_multicast_tunnels_and_metadata_closed() {
        for text in [
            "10.0.0.1",
            "127.0.0.1",
            "172.20.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "::1",
            "fd12::1",
            "8.8.8.8",
        ] {
            assert!(
                may_fetch_public_or_private(ip(text)),
                "{text} should be allowed"
            );
        }
        let closed = [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::a9fe:a9fe",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "192.0.0.192",
            "168.63.129.16",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
        ];
        for text in closed {
            assert!(
                !may_fetch_public_or_private(ip(text)),
                "{text} should stay closed"
            );
            assert!(!may_fetch_public(ip(text)), "{text} should stay closed");
        }
    }

    proptest! {
        #[test]
        fn a_mapped_address_is_judged_as_the_address_inside(bits in any::<u32>()) {
            let inner = Ipv4Addr::from(bits);
            prop_assert_eq!(is_public(inner.to_ipv6_mapped().into()), is_public(inner.into()));
            prop_assert_eq!(is_private(inner.to_ipv6_mapped().into()), is_private(inner.into()));
        }

        #[test]
        fn no_tunnel_prefix_carries_an_address_past_the_rule(bits in any::<u32>(), tail in any::<u64>()) {
            let [a, b, c, d] = bits.to_be_bytes();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let compatible = Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low);
            let nat64 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low);
            let local_nat64 = Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low);
            let six_to_four = Ipv6Addr::from((0x2002u128 << 112) | (u128::from(bits) << 80) | u128::from(tail));
            for tunnel in [compatible, nat64, local_nat64, six_to_four] {
                prop_assert!(!is_public(tunnel.into()));
                prop_assert!(tunnel == Ipv6Addr::LOCALHOST || !may_fetch_public_or_private(tunnel.into()));
            }
        }

        #[test]
        fn nothing_that_the_standard_library_calls_special_is_public(bits in any::<u32>(), wide in any::<u128>()) {
            let ip = Ipv4Addr::from(bits);
            let special = ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_multicast()
                || ip.is_broadcast() || ip.is_documentation() || ip.is_unspecified();
            prop_assert!(!(special && is_public(ip.into())));
            let ip = Ipv6Addr::from(wide);
            let special = ip.is_unique_local() || ip.is_unicast_link_local() || ip.is_multicast();
            prop_assert!(!(special && is_public(ip.into())));
        }

        #[test]
        fn no_address_is_both_public_and_private(bits in any::<u128>(), short in any::<u32>()) {
            for ip in [IpAddr::from(Ipv6Addr::from(bits)), IpAddr::from(Ipv4Addr::from(short))] {
                prop_assert!(!(is_public(ip) && is_private(ip)));
            }
        }

        #[test]
        fn every_numeric_spelling_of_an_address_is_read_as_that_address(bits in any::<u32>()) {
            let [a, b, c, d] = bits.to_be_bytes();
            let meant = Some(IpAddr::from(Ipv4Addr::from(bits)));
            let low = bits & 0xff_ffff;
            for host in [
                format!("{bits}"), format!("{bits:#x}"), format!("0{bits:o}"), format!("{a}.{low}"),
                format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"), format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
                format!("{a}.{b}.{c}.{d}."),
            ] {
                prop_assert_eq!(literal(&format!("http://{host}/")), meant);
            }
        }
    }
}
