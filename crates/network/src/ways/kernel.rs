//! Brings the kernel to the ways that are to be there. What stands there already is left as it is: a restart ends no
//! connection.

use super::{Lost, TunnelPlan, WayPlan, Ways, apart, end_of};
use crate::pods::{PROTOCOL, quiet, write_setting};
use crate::rules::tunnel_name;
use crate::{Error, failed};
use davit_net::route::{Link, Netlink, Route};
use davit_net::tunnel::{FarEnd, Neighbours, VxlanTunnel};
use davit_netplan::Family;
use std::collections::BTreeSet;
use std::io;

impl Ways {
    /// Makes what is missing and takes away what is too much. Answers with the nodes to whose pods there is no way.
    pub(crate) fn write(&self, plan: &WayPlan) -> Result<Lost, Error> {
        let mut netlink = Netlink::open().map_err(failed("netlink"))?;
        let mut lost = plan.lost.clone();
        let routers = plan.routers.iter().copied();
        let mut routes: Vec<Route> = routers.map(|way| self.by_router(way)).collect();
        for family in Family::ALL {
            let Some(tunnel) = plan.tunnels.get(&family) else {
                let closed = self.close(&mut netlink, family);
                closed.map_err(failed("removing the tunnel to other nodes"))?;
                continue;
            };
            match self.open(&mut netlink, family, tunnel) {
                Ok((far, alike)) => {
                    routes.extend(far);
                    lost.extend(alike);
                }
                Err(error) => {
                    let why = told(&error, tunnel, self);
                    let nodes = tunnel.far.iter().map(|(_, at)| (*at, why.clone()));
                    lost.extend(nodes);
                    // nothing half done
                    let closed = self.close(&mut netlink, family);
                    closed.map_err(failed("removing the tunnel to other nodes"))?;
                }
            }
        }
        let services = plan.services.iter();
        routes.extend(services.map(|way| self.to_services(*way)));
        let written = self.write_routes(&mut netlink, &routes);
        written.map_err(failed("routes to other nodes and to Services"))?;
        Ok(lost)
    }

    fn name(&self, family: Family) -> String {
        tunnel_name(self.tables.links(), family)
    }

    /// Has the tunnel be there; the routes that lead into it, and the nodes that get none.
    fn open(
        &self,
        netlink: &mut Netlink,
        family: Family,
        plan: &TunnelPlan,
    ) -> io::Result<(Vec<Route>, Lost)> {
        // before anything can come in by it
        self.tables.of(family)?.set_tunnel(Some(self.port()))?;
        let link = self.device(netlink, family, plan)?;
        let placed = netlink.placed_addresses()?;
        if !placed
            .iter()
            .any(|(at, address, _)| *at == link && *address == plan.gateway)
        {
            netlink.add_host_address(&link, plan.gateway)?;
        }
        let known = netlink.far_ends(&link, Neighbours::Machines)?;
        let wanted = plan.far.iter().map(|(_, at)| *at).collect();
        let (ends, alike) = apart(plan.local, &wanted, &known);
        for of in [Neighbours::Machines, Neighbours::Routers] {
            let held: BTreeSet<FarEnd> = netlink.far_ends(&link, of)?.into_iter().collect();
            for gone in held.difference(&ends) {
                netlink.remove_far_end(&link, of, *gone)?;
            }
            for new in ends.difference(&held) {
                netlink.set_far_end(&link, of, *new)?;
            }
        }
        let reached = plan.far.iter().filter(|(_, at)| !alike.contains_key(at));
        let routes = reached.map(|(range, at)| Route {
            link: Some(link),
            source: Some(plan.gateway),
            on_link: true,
            ..self.by_router((*range, *at))
        });
        Ok((routes.collect(), alike))
    }

    /// The device as it is to be; another one of its name is taken away.
    fn device(&self, netlink: &mut Netlink, family: Family, plan: &TunnelPlan) -> io::Result<Link> {
        let name = self.name(family);
        let port = self.port();
        let wanted = VxlanTunnel {
            number: port.number,
            port: port.port,
            local: plan.local,
            at: end_of(plan.local),
        };
        if netlink.tunnel(&name)? != Some(wanted) {
            netlink.remove_link(&name)?;
            netlink.add_tunnel(&name, &wanted, plan.mtu)?;
        }
        let links = netlink.links()?;
        let found = links.into_iter().find(|found| found.name == name);
        let found = found.ok_or_else(|| io::Error::other("the device has gone again"))?;
        if found.mtu != plan.mtu {
            netlink.set_mtu(&found.link, plan.mtu)?;
        }
        if family == Family::V6 {
            // nobody is asked for by what only means something on one link
            write_setting(&name, "addr_gen_mode", "1")?;
        }
        quiet(&name, family == Family::V6)?;
        netlink.set_up(&found.link)?;
        Ok(found.link)
    }

    /// Has no tunnel be there.
    fn close(&self, netlink: &mut Netlink, family: Family) -> io::Result<()> {
        netlink.remove_link(&self.name(family))?;
        let mut tables = self.tables.all().into_iter();
        match tables.find(|table| table.family() == family) {
            Some(table) => table.set_tunnel(None),
            None => Ok(()),
        }
    }

    fn write_routes(&self, netlink: &mut Netlink, wanted: &[Route]) -> io::Result<()> {
        let held: Vec<Route> = netlink
            .routes()?
            .into_iter()
            .filter(|held| held.protocol == PROTOCOL && held.metric == self.metric)
            .collect();
        // One to the same pods by another way is replaced, so that they are always reached.
        for held in &held {
            let known = wanted.iter().any(|route| is_to_same(held, route));
            if !known {
                netlink.remove_route(held)?;
            }
        }
        for route in wanted {
            let stands = held.iter().any(|held| {
                is_to_same(held, route)
                    && held.via == route.via
                    && held.on_link == route.on_link
                    && route.link.is_none_or(|link| held.link == Some(link))
                    && route.source.is_none_or(|from| held.source == Some(from))
            });
            if !stands {
                netlink.set_route(route)?;
            }
        }
        Ok(())
    }
}

fn is_to_same(one: &Route, other: &Route) -> bool {
    (one.to, one.bits) == (other.to, other.bits)
}

/// Why there is no tunnel, in words.
fn told(error: &io::Error, plan: &TunnelPlan, ways: &Ways) -> String {
    let port = ways.port();
    match error.kind() {
        io::ErrorKind::Unsupported => {
            "it is on none of this machine's networks, and the kernel has no VXLAN (module vxlan)"
                .to_owned()
        }
        io::ErrorKind::AlreadyExists => format!(
            "it is on none of this machine's networks, and something else has number {} of VXLAN at port {}",
            port.number, port.port
        ),
        _ => format!(
            "it is on none of this machine's networks, and the tunnel from {} cannot be made: {error}",
            plan.local
        ),
    }
}
