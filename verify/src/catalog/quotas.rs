//! Quotas of prefixes.

use super::{CatalogModel, agree};
use crate::catalog::reference::{Verdict, require};
use honeycomb_catalog::{CatalogError, QuotaChange, QuotaOf, Reply};

impl CatalogModel {
    pub(super) fn bound(
        &mut self,
        of: QuotaOf<'_>,
        change: QuotaChange,
        reply: &Result<Reply, CatalogError>,
    ) -> Verdict {
        let QuotaOf::Prefix(job, path) = of else {
            return Err(format!("the model knows quotas of prefixes only: {of:?}"));
        };
        let j = self.job(job);
        let expected = self.cluster.jobs[j].change_bound(path, change);
        let expected = expected.map(|(most, soft, id)| {
            (most, soft, id.map_or(0, |id| self.cluster.blocks_below(j, id)))
        });
        agree("a quota", reply, &expected)?;
        let (Ok(Reply::Quota { allowed, held, .. }), Ok(due)) = (reply, expected) else {
            return Ok(());
        };
        let is = (allowed.most, allowed.soft, *held);
        require(is == due, || format!("the quota of '{path}' is {is:?}, not {due:?} (INV-30)"))
    }
}
