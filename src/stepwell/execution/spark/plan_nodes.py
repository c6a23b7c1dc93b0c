"""Collect all nodes of a Spark plan in one call to Java.

A plan contains plans and expressions in many places: subqueries, WITH, named windows, hints,
options, nested lists. The walk below follows everything a node holds, so that no place is missed
when Spark gains another. Node by node through the gateway it would take a second for a large query.
So it is a Java class, compiled by the compiler that Spark ships for its own generated code.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class PlanNode:
    is_plan: bool
    """Whether it is a relation, not an expression."""
    class_name: str
    """The Java class, with its package."""
    offset: int | None
    """The start position in the text, in characters."""
    words: tuple[str, ...] | None
    """The parts of the name of a relation, function or view; the names that WITH declares; the text
    that IDENTIFIER turns into a name, None if it is not a plain text; the names of options."""
    unusual: bool
    """A relation with options or as a stream; a view that is not temporary; a call of a function
    whose options may name a file."""

    @property
    def kind(self) -> str:
        """The class name without package.

        >>> PlanNode(True, "org.apache.spark.sql.catalyst.CurrentNamespace$", 0, None, False).kind
        'CurrentNamespace'
        """
        return self.class_name.rpartition(".")[2].rstrip("$")


def nodes(spark: SparkSession, plan: Any) -> list[PlanNode]:
    """Every node of a parsed or analysed plan, in no order. Temporary views are not entered."""
    lines = str(_walker(spark).apply(plan)).split("\n")
    return [_node(line.split("\t")) for line in lines if line]


def _node(fields: list[str]) -> PlanNode:
    sort, class_name, offset, unusual, given, *words = fields
    return PlanNode(
        sort == "plan",
        class_name,
        int(offset) if offset else None,
        tuple(map(_unescaped, words)) if given else None,
        bool(unusual),
    )


def _unescaped(word: str) -> str:
    return word.replace("\\n", "\n").replace("\\t", "\t").replace("\\b", "\\")


_COMPILING = threading.Lock()


def _walker(spark: SparkSession) -> Any:
    # Compiled once: the gateway caches methods by class name, and would call the methods of one
    # class on an object of another class with the same name.
    with _COMPILING:
        return _compiled(spark.sparkContext._jvm)


@lru_cache(maxsize=1)
def _compiled(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_WALK)
    return compiler.getClassLoader().loadClass("stepwell.PlanNodes").newInstance()


# A backslash is written as \b, so that no escape is part of another.
_WALK = r"""
package stepwell;

import java.util.ArrayDeque;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import scala.Option;
import scala.Product;
import scala.collection.Iterator;

public final class PlanNodes implements java.util.function.Function {
    public Object apply(Object plan) {
        StringBuilder out = new StringBuilder();
        Set seen = Collections.newSetFromMap(new IdentityHashMap());
        ArrayDeque rest = new ArrayDeque();
        rest.push(plan);
        while (!rest.isEmpty()) {
            Object item = rest.pop();
            if (item instanceof DataType || !seen.add(item)) continue;
            if (item instanceof TreeNode) {
                TreeNode node = (TreeNode) item;
                write(node, out);
                if (node instanceof View && ((View) node).isTempView()) continue;
                pushAll(node.children().iterator(), rest);
                pushAll(node.innerChildren().iterator(), rest);
            }
            if (item instanceof scala.collection.Iterable) {
                pushAll(((scala.collection.Iterable) item).iterator(), rest);
            } else if (item instanceof Product) {
                pushAll(((Product) item).productIterator(), rest);
            }
        }
        return out.toString();
    }

    private static void pushAll(Iterator items, ArrayDeque rest) {
        while (items.hasNext()) {
            Object item = items.next();
            if (item != null) rest.push(item);
        }
    }

    private static void write(TreeNode node, StringBuilder out) {
        if (node instanceof Literal) return;
        out.append(node instanceof LogicalPlan ? "plan" : "expression");
        out.append('\t').append(node.getClass().getName()).append('\t');
        Option start = node.origin().startIndex();
        if (start.isDefined()) out.append(start.get());
        out.append('\t');
        if (node instanceof UnresolvedRelation) {
            UnresolvedRelation relation = (UnresolvedRelation) node;
            if (relation.isStreaming() || !relation.options().isEmpty()) out.append('x');
            words(relation.multipartIdentifier().iterator(), out);
        } else if (node instanceof UnresolvedFunction) {
            if (mayNameFile((UnresolvedFunction) node)) out.append('x');
            words(((UnresolvedFunction) node).nameParts().iterator(), out);
        } else if (node instanceof UnresolvedTableValuedFunction) {
            words(((UnresolvedTableValuedFunction) node).name().iterator(), out);
        } else if (node instanceof UnresolvedGenerator) {
            word(((UnresolvedGenerator) node).name().funcName(), out);
        } else if (node instanceof PlanWithUnresolvedIdentifier) {
            word(text(((PlanWithUnresolvedIdentifier) node).identifierExpr()), out);
        } else if (node instanceof ExpressionWithUnresolvedIdentifier) {
            word(text(((ExpressionWithUnresolvedIdentifier) node).identifierExpr()), out);
        } else if (node instanceof UnresolvedWith) {
            Iterator all = ((UnresolvedWith) node).cteRelations().iterator();
            out.append("\tx");
            while (all.hasNext()) one((String) ((Product) all.next()).productElement(0), out);
        } else if (node instanceof View) {
            if (!((View) node).isTempView()) out.append('x');
            word(((View) node).desc().identifier().table(), out);
        } else if (node instanceof Expression) {
            options(node, out);
        } else {
            out.append('\t');
        }
        out.append('\n');
    }

    /** Whether options of this call are anything else than map() of harmless literals. */
    private static boolean mayNameFile(UnresolvedFunction call) {
        String name = last(call);
        int plain = name.equals("from_xml") ? 2 : name.equals("schema_of_xml") ? 1 : -1;
        Iterator arguments = call.arguments().iterator();
        for (int i = 0; plain >= 0 && arguments.hasNext(); i++) {
            Object argument = arguments.next();
            if (i < plain) continue;
            if (!(argument instanceof UnresolvedFunction)) return true;
            if (!last((UnresolvedFunction) argument).equals("map")) return true;
            Iterator options = ((UnresolvedFunction) argument).arguments().iterator();
            while (options.hasNext()) {
                Object option = options.next();
                if (!(option instanceof Literal)) return true;
                String text = String.valueOf(((Literal) option).value());
                if (text.equalsIgnoreCase("rowValidationXSDPath")) return true;
            }
        }
        return false;
    }

    private static String last(UnresolvedFunction call) {
        return ((String) call.nameParts().last()).toLowerCase(java.util.Locale.ROOT);
    }

    /** The names of options that an expression has, as from_json has them once it is analysed. */
    private static void options(TreeNode node, StringBuilder out) {
        Iterator items = node.productIterator();
        boolean any = false;
        while (items.hasNext()) {
            Object item = items.next();
            if (!(item instanceof scala.collection.Map)) continue;
            Iterator keys = ((scala.collection.Map) item).keysIterator();
            while (keys.hasNext()) {
                Object key = keys.next();
                if (!(key instanceof String)) continue;
                if (!any) out.append("\tx");
                any = true;
                one((String) key, out);
            }
        }
        if (!any) out.append('\t');
    }

    /** The text an expression stands for, if it is made of texts alone. */
    private static String text(Expression expression) {
        if (expression instanceof Literal) {
            Object value = ((Literal) expression).value();
            return value == null ? null : value.toString();
        }
        if (!(expression instanceof Concat)) return null;
        StringBuilder all = new StringBuilder();
        Iterator parts = expression.children().iterator();
        while (parts.hasNext()) {
            String part = text((Expression) parts.next());
            if (part == null) return null;
            all.append(part);
        }
        return all.toString();
    }

    private static void words(Iterator all, StringBuilder out) {
        out.append("\tx");
        while (all.hasNext()) one((String) all.next(), out);
    }

    private static void word(String word, StringBuilder out) {
        out.append(word == null ? "\t" : "\tx");
        if (word != null) one(word, out);
    }

    private static void one(String word, StringBuilder out) {
        word = word.replace("\\", "\\b").replace("\t", "\\t").replace("\n", "\\n");
        out.append('\t').append(word);
    }
}
"""
