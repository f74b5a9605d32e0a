"""LangChain with OpenAI's API, and LangGraph's agents on it.

from langchain_openai import ChatOpenAI
llm = ChatOpenAI(base_url="http://localhost:8080/v1", api_key="none", model="any")
llm.invoke("Hello")
"""

from __future__ import annotations

from typing import Any

from checks import QUESTION, V1
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

LLM: Any = ChatOpenAI(base_url=V1, api_key="none", model="any", max_tokens=200, max_retries=0)


class Person(BaseModel):
    name: str
    age: int


@tool
def _get_weather(city: str) -> str:
    """The weather in a city."""
    return "It is warm."


def invoke_and_stream() -> None:
    assert LLM.invoke("Hello").content == "".join(chunk.content for chunk in LLM.stream("Hello"))


def forced_call() -> None:
    for choice in ("_get_weather", "required"):
        call, *_ = LLM.bind_tools([_get_weather], tool_choice=choice).invoke(QUESTION).tool_calls
        assert (call["name"], list(call["args"])) == ("_get_weather", ["city"])


def structured_output() -> None:
    for method in ("function_calling", "json_schema"):
        assert isinstance(LLM.with_structured_output(Person, method=method).invoke("Ada is 36 years old."), Person)


def graph_with_a_tool() -> None:
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    forced = LLM.bind_tools([_get_weather], tool_choice="required")
    graph = StateGraph(MessagesState)
    graph.add_node("call", lambda state: {"messages": [forced.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([_get_weather]))
    graph.add_node("answer", lambda state: {"messages": [LLM.invoke(state["messages"])]})
    for edge in ((START, "call"), ("call", "tools"), ("tools", "answer")):
        graph.add_edge(*edge)
    messages = graph.compile().invoke({"messages": [("user", QUESTION)]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]


def responses() -> None:
    llm: Any = ChatOpenAI(base_url=V1, api_key="none", model="any", max_tokens=50, use_responses_api=True)
    assert llm.invoke("Hello").text
